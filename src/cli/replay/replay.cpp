// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/replay.h"

#include "cli/replay/row_difference.h"
#include "cli/replay/row_selection.h"
#include "cli/replay/schedule_check.h"
#include "wire/serialize.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

class Replay {
 public:
  Replay(const ModelFacts& facts, Executor* executor, ReplayReport& report)
      : check_(facts), selection_(facts), facts_(facts), executor_(executor), report_(report) {}

  // Takes the next record. False: the end, because the schedule is wrong or cannot be followed any further.
  Result<bool> take(const StepFileRecord& record) {
    if (last_number_ > 0 && record.number != last_number_ + 1) {
      ++report_.num_gaps;
      restart();
    }
    last_number_ = record.number;
    switch (record.message) {
      case StepMessage::kStep:
        run_pending(nullptr);
        return read(record, step_).map([&] { return take_step(); });
      case StepMessage::kGrammar:
        return read(record, grammar_).map([&] { return take_grammar(); });
      case StepMessage::kOutput:
        return read(record, output_).map([&] { return take_output(); });
    }
    return fail(ErrorCode::kCorrupt, fmt::format("record {} is of an unknown kind", record.number));
  }

  void finish() {
    if (!report_.wrong_schedule && step_.grammar_rows.empty()) {
      run_pending(nullptr);  // the step in which the recorded run ended
    }
    report_.num_different = static_cast<int64_t>(different_.size());
    report_.num_requests = selection_.num_begun();
    report_.num_left_out = selection_.num_left_out();
    report_.num_recomputed = selection_.num_recomputed();
  }

 private:
  template <typename Message>
  static Result<void> read(const StepFileRecord& record, Message& message) {
    return deserialize(record.bytes, message);
  }

  void restart() {
    check_.restart();
    selection_.restart();
    is_pending_ = false;
    results_.clear();
  }

  bool is_right(int64_t step, std::string wrong) {
    if (!wrong.empty()) {
      report_.wrong_schedule = ReplayFinding{step, std::nullopt, std::move(wrong)};
    }
    return !report_.wrong_schedule;
  }

  bool take_step() {
    report_.first_step = report_.num_steps++ == 0 ? step_.step : report_.first_step;
    report_.last_step = step_.step;
    if (!is_right(step_.step, check_.add(step_))) {
      return false;
    }
    is_pending_ = executor_ != nullptr;
    return true;
  }

  bool take_grammar() {
    if (!is_right(step_.step, check_.add(grammar_))) {
      return false;
    }
    run_pending(&grammar_);
    return true;
  }

  bool take_output() {
    // The engine may take the output of the step before while this one waits for its masks.
    if (is_pending_ && output_.step == step_.step) {
      run_pending(nullptr);
    }
    if (!is_right(output_.step, check_.add(output_))) {
      return false;
    }
    const auto found = results_.find(output_.step);
    if (found == results_.end()) {
      return true;
    }
    compare(found->second);
    results_.erase(found);
    // With drafts, a row whose tokens differ may advance further than the recording has blocks for.
    return different_.empty() || facts_.max_drafts == 0;
  }

  // Runs the last step, whose masks have come if it has any.
  void run_pending(const GrammarOutput* grammar) {
    if (!std::exchange(is_pending_, false)) {
      return;
    }
    const std::vector<SchedulerOutput>& steps = selection_.select(step_);
    for (const SchedulerOutput& step : steps) {
      const bool is_last = &step == &steps.back();
      executor_->execute_model(step);
      executor_->sample_tokens(is_last && grammar != nullptr ? &selection_.select(*grammar)
                                                             : nullptr);
      executor_->take_output(results_[step.step]);
    }
    ++report_.num_steps_run;
  }

  void compare(const ModelRunnerOutput& got) {
    for (const RowOutput& recorded : output_.rows) {
      const auto row = std::ranges::find(got.rows, recorded.row, &RowOutput::row);
      const std::pair request(recorded.row, recorded.generation);
      if (row == got.rows.end() || different_.contains(request)) {
        continue;
      }
      ++report_.num_outputs;
      std::string what = row_difference(output_, recorded, got, *row);
      if (what.empty()) {
        continue;
      }
      selection_.distrust(recorded.row, recorded.generation);
      different_.insert(request);
      if (!report_.first_difference) {
        report_.first_difference =
            ReplayFinding{output_.step, index_of(recorded.row), std::move(what)};
      }
    }
  }

  ScheduleCheck check_;
  RowSelection selection_;
  const ModelFacts& facts_;
  Executor* executor_;
  ReplayReport& report_;
  uint64_t last_number_ = 0;
  SchedulerOutput step_;
  GrammarOutput grammar_;
  ModelRunnerOutput output_;
  bool is_pending_ = false;                         // step_ has not run yet
  std::map<int64_t, ModelRunnerOutput> results_;    // by step, until the recorded output comes
  std::set<std::pair<RowId, uint32_t>> different_;  // rows and generations
};

}  // namespace

Result<ReplayReport> replay(const StepFile& file,
                            const ModelFacts& facts,
                            Executor* executor,
                            const ReplayProgress& progress) {
  ReplayReport report;
  report.num_damaged = file.num_damaged();
  report.did_run = executor != nullptr;
  Replay state(facts, executor, report);
  for (const StepFileRecord& record : file.records()) {
    const Result<bool> goes_on = state.take(record);
    if (!goes_on) {
      return tl::unexpected(goes_on.error());
    }
    if (!*goes_on) {
      break;
    }
    if (progress) {
      progress(report);
    }
  }
  state.finish();
  return report;
}

}  // namespace warprow
