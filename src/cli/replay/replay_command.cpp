// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/command.h"
#include "cli/commands/command_frame.h"
#include "cli/output.h"
#include "cli/progress_bar.h"
#include "cli/replay/recorded_run.h"
#include "cli/replay/replay.h"
#include "cli/replay/replay_executor.h"
#include "cli/replay/used_ids.h"

#include <algorithm>
#include <memory>
#include <string>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

std::string text_of(const ReplayFinding& finding) {
  return finding.row ? fmt::format("step {}, row {}: {}", finding.step, *finding.row, finding.what)
                     : fmt::format("step {}: {}", finding.step, finding.what);
}

std::string text_of(const ReplayReport& report, const RecordedRun& run) {
  std::string text = fmt::format("recording   {} steps, {} to {}, of {} by warprow {}",
                                 report.num_steps,
                                 report.first_step,
                                 report.last_step,
                                 run.config.model,
                                 run.version);
  if (report.num_gaps > 0 || report.num_damaged > 0) {
    text += fmt::format("; {} gaps, {} damaged records", report.num_gaps, report.num_damaged);
  }
  text += fmt::format("\nschedule    {}\n",
                      report.wrong_schedule ? text_of(*report.wrong_schedule) : "consistent");
  if (!report.did_run) {
    return text + "tokens      not checked: the recording has no ids";
  }
  text += fmt::format("replay      {} steps, {} requests, {} outputs of rows compared",
                      report.num_steps_run,
                      report.num_requests,
                      report.num_outputs);
  if (report.num_left_out > 0) {
    text += fmt::format("; {} requests left out, which began or were cached before the recording",
                        report.num_left_out);
  }
  if (report.num_recomputed > 0) {
    text += fmt::format("; {} tokens of older prefixes computed again", report.num_recomputed);
  }
  text += "\ntokens      ";
  return text + (report.first_difference ? fmt::format("{} of {} requests differ, first in {}",
                                                       report.num_different,
                                                       report.num_requests,
                                                       text_of(*report.first_difference))
                                         : std::string("no difference"));
}

AnswerJson json_of(const std::optional<ReplayFinding>& finding) {
  if (!finding) {
    return nullptr;
  }
  AnswerJson json = {{"step", finding->step}, {"row", nullptr}, {"what", finding->what}};
  if (finding->row) {
    json["row"] = *finding->row;
  }
  return json;
}

AnswerJson json_of(const ReplayReport& report, const RecordedRun& run) {
  return {{"same", report.is_same()},
          {"checked", report.did_run ? "tokens" : "schedule"},
          {"model", run.config.model},
          {"recorded_by", run.version},
          {"steps", report.num_steps},
          {"first_step", report.first_step},
          {"last_step", report.last_step},
          {"gaps", report.num_gaps},
          {"damaged_records", report.num_damaged},
          {"wrong_schedule", json_of(report.wrong_schedule)},
          {"steps_run", report.num_steps_run},
          {"requests", report.num_requests},
          {"requests_left_out", report.num_left_out},
          {"tokens_recomputed", report.num_recomputed},
          {"outputs_compared", report.num_outputs},
          {"different_requests", report.num_different},
          {"first_difference", json_of(report.first_difference)}};
}

}  // namespace

Result<ExitCode> run_replay(const Arguments& arguments) {
  CommandFrame frame(
      "replay", "run the steps of a recording again and find the first difference", "FILE [FLAGS]");
  frame.add_output_flag();
  const Result<std::optional<ExitCode>> begun =
      frame.begin(arguments, {.takes_model = false, .needs_model = [] { return false; }});
  if (!begun || *begun) {
    return begun.map([](const std::optional<ExitCode>& code) { return *code; });
  }
  if (frame.more_arguments().size() != 1) {
    return fail(ErrorCode::kInvalidArgument, "replay needs one FILE, made by serve --record-steps");
  }
  const Result<StepFile> file = StepFile::open(frame.more_arguments().front());
  if (!file) {
    return tl::unexpected(file.error());
  }
  const Result<RecordedRun> run = read_description(file->description());
  if (!run) {
    return tl::unexpected(run.error());
  }
  if (file->records().empty()) {
    return fail(ErrorCode::kInvalidArgument, "the recording has no steps");
  }
  std::unique_ptr<Executor> executor;
  if (run->with_ids) {
    const Result<UsedIds> used = used_ids(*file);
    if (!used) {
      return tl::unexpected(used.error());
    }
    Result<std::unique_ptr<Executor>> loaded = make_replay_executor(*run, *used, frame.loaded());
    if (!loaded) {
      return tl::unexpected(loaded.error());
    }
    executor = *std::move(loaded);
  }
  const auto num_steps =
      std::ranges::count(file->records(), StepMessage::kStep, &StepFileRecord::message);
  ProgressBar bar(num_steps, isatty(STDERR_FILENO) == 1);
  const Result<ReplayReport> report =
      replay(*file, run->facts, executor.get(), [&](const ReplayReport& so_far) {
        bar.update(so_far.num_steps, so_far.num_outputs);
      });
  bar.clear();
  if (!report) {
    return tl::unexpected(report.error());
  }
  Output out(STDOUT_FILENO);
  out.write(frame.as_json() ? json_line(json_of(*report, *run)) : text_of(*report, *run));
  out.end_line();
  return out.status().map(
      [&] { return report->is_same() ? ExitCode::kOk : ExitCode::kRequestFailed; });
}

}  // namespace warprow
