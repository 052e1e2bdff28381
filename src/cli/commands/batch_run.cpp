// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/batch_run.h"

#include "cli/commands/request_file.h"
#include "cli/commands/request_line.h"
#include "cli/note.h"
#include "cli/run_summary.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr size_t kLeastLookAhead = 256;
constexpr size_t kLookAheadPerSeq = 4;

}  // namespace

BatchRun::BatchRun(Engine& engine, UpdateQueue& updates, const RunOptions& options, Output& out)
    : engine_(engine),
      updates_(updates),
      options_(options),
      out_(out),
      look_ahead_(std::max(
          kLeastLookAhead,
          kLookAheadPerSeq * static_cast<size_t>(std::max(0, engine.model_facts().max_num_seqs)))) {
}

Result<ExitCode> BatchRun::run(std::istream& lines,
                               const SamplingOptions& defaults,
                               int64_t total) {
  const auto start = std::chrono::steady_clock::now();
  {
    ProgressBar bar(total, options_.summary && !out_.is_terminal());
    while (updates_.signal() == 0 && !out_.closed()) {
      read_ahead(lines, defaults);
      write_finished();
      if (window_.empty() && end_of_input_) {
        break;
      }
      take_update();
      const auto done = first_ + static_cast<int64_t>(window_.size()) - num_running_;
      bar.update(done, num_output_tokens_);
    }
    abort_all();
  }
  report(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (Result<void> written = out_.status(); !written) {
    return tl::unexpected(written.error());
  }
  if (updates_.signal() != 0) {
    return exit_code_of_signal(updates_);
  }
  return num_failed_ == 0 ? ExitCode::kOk : ExitCode::kRequestFailed;
}

void BatchRun::read_ahead(std::istream& lines, const SamplingOptions& defaults) {
  std::string text;
  while (!end_of_input_ && window_.size() < look_ahead_ && updates_.signal() == 0) {
    if (!std::getline(lines, text)) {
      end_of_input_ = true;
      return;
    }
    ++line_number_;
    if (!is_blank(text)) {
      start_line(text, defaults);
    }
  }
}

void BatchRun::start_line(const std::string& text, const SamplingOptions& defaults) {
  Line& line = window_.emplace_back();
  Result<GenerationRequest> request = parse_request_line(text, defaults);
  if (!request) {
    refuse(line, request.error());
    return;
  }
  request->adapter = options_.adapter;
  Result<ValidRequest> valid = engine_.validate(*request);
  if (!valid) {
    refuse(line, valid.error());
    return;
  }
  line.prompt_token_ids = valid->prompt_token_ids();
  const int64_t number = first_ + static_cast<int64_t>(window_.size()) - 1;
  for (ValidRequest& choice : split_choices(*valid)) {
    const RequestId id = engine_.submit(std::move(choice), updates_.callback());
    live_.emplace(id, Choice{number, line.num_running++});
  }
  line.answers.resize(line.num_running);
  ++num_running_;
}

void BatchRun::refuse(Line& line, const Error& error) {
  line.result = error_json({error.code, fmt::format("line {}: {}", line_number_, error.message)});
  ++num_failed_;
}

void BatchRun::take_update() {
  std::optional<RequestUpdate> update = updates_.take();
  if (!update) {
    return;
  }
  const auto found = live_.find(update->id);
  if (found == live_.end()) {
    return;
  }
  Line& line = window_[static_cast<size_t>(found->second.line - first_)];
  num_output_tokens_ += static_cast<int64_t>(update->token_ids.size());
  Answer& answer = line.answers[found->second.index];
  answer.add(*std::move(update));
  if (answer.finished()) {
    live_.erase(found);
    if (--line.num_running == 0) {
      finish(line);
    }
  }
}

void BatchRun::finish(Line& line) {
  --num_running_;
  if (const Answer* failed = find_failed(line.answers)) {
    line.result = error_json({ErrorCode::kInternal, failed->error});
    ++num_failed_;
  } else {
    line.result = answer_json(line.prompt_token_ids, line.answers);
  }
}

void BatchRun::write_finished() {
  while (!window_.empty() && !window_.front().result.is_null()) {
    AnswerJson& result = window_.front().result;
    if (options_.stats) {
      // The counters of the run so far. The last line has the totals.
      result["stats"] = stats_json(engine_.stats());
    }
    out_.write(json_line(result));
    window_.pop_front();
    ++first_;
  }
}

void BatchRun::abort_all() {
  for (const auto& [id, choice] : live_) {
    engine_.abort(id);
  }
}

void BatchRun::report(double seconds) const {
  if (updates_.signal() != 0) {
    note("warprow: interrupted; {} results written\n", first_);
  }
  if (num_failed_ > 0) {
    note("warprow: {} of {} prompts failed; their lines say why\n", num_failed_, first_);
  }
  if (options_.stats || options_.summary) {
    print_summary(num_output_tokens_, seconds, engine_.stats(), options_.stats);
  }
}

}  // namespace warprow
