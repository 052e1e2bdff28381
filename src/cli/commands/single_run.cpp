// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/single_run.h"

#include "base/check.h"
#include "cli/note.h"
#include "cli/run_summary.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Writes the new text of the first unfinished choice. So it writes all choices one after the other.
//
// Thread: one. Invariant: the first written_ bytes of answers_[current_] are written.
class ChoiceWriter {
 public:
  // out may be null; answers outlive this.
  ChoiceWriter(const std::vector<Answer>& answers, Output* out) : answers_(answers), out_(out) {}

  void write() {
    while (out_ != nullptr && current_ < answers_.size()) {
      const Answer& answer = answers_[current_];
      if (written_ == 0 && answers_.size() > 1 && (answer.finished() || !answer.text.empty())) {
        out_->end_line();
        out_->write(fmt::format("== {} of {} ==\n", current_ + 1, answers_.size()));
      }
      out_->write(std::string_view(answer.text).substr(written_));
      written_ = answer.text.size();
      if (!answer.finished()) {
        return;
      }
      ++current_;
      written_ = 0;
    }
  }

 private:
  const std::vector<Answer>& answers_;
  Output* out_;
  size_t current_ = 0;
  size_t written_ = 0;
};

}  // namespace

void add_stats_flag(FlagSet& flags, RunOptions& options) {
  flags.add_switch(
      {.name = "stats",
       .value = "",
       .group = "Output",
       .help = "speed and the engine's counters on stderr, the counters also in the JSON"},
      [&options](bool on) { options.stats = on; });
}

std::vector<Answer> stream_answers(Engine& engine,
                                   UpdateQueue& updates,
                                   const ValidRequest& request,
                                   Output* text) {
  std::vector<RequestId> ids;
  for (ValidRequest& choice : split_choices(request)) {
    ids.push_back(engine.submit(std::move(choice), updates.callback()));
  }
  std::vector<Answer> answers(ids.size());
  ChoiceWriter writer(answers, text);
  size_t num_running = ids.size();
  bool aborted = false;
  while (num_running > 0) {
    if (std::optional<RequestUpdate> update = updates.take()) {
      const auto found = std::find(ids.begin(), ids.end(), update->id);
      WR_CHECK(found != ids.end(), "an update of request {}, which is not ours", update->id);
      Answer& answer = answers[static_cast<size_t>(found - ids.begin())];
      answer.add(*std::move(update));
      num_running -= answer.finished() ? 1 : 0;
      if (!aborted) {
        writer.write();
      }
    }
    const bool unwanted = updates.signal() != 0 || (text != nullptr && text->closed());
    if (unwanted && !aborted) {
      std::for_each(ids.begin(), ids.end(), [&](RequestId id) { engine.abort(id); });
      aborted = true;
    }
  }
  return answers;
}

ExitCode exit_code_of_signal(const UpdateQueue& updates) {
  if (updates.signal() == SIGTERM) {
    return ExitCode::kTerminated;
  }
  return updates.signal() == 0 ? ExitCode::kOk : ExitCode::kInterrupted;
}

Result<ExitCode> run_single(Engine& engine,
                            UpdateQueue& updates,
                            const GenerationRequest& request,
                            const RunOptions& options,
                            Output& out) {
  Result<ValidRequest> valid = engine.validate(request);
  if (!valid) {
    return tl::unexpected(refused_request(valid.error()));
  }
  const std::vector<TokenId> prompt = valid->prompt_token_ids();
  const bool as_text = options.format == AnswerFormat::kText;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<Answer> answers =
      stream_answers(engine, updates, *valid, as_text ? &out : nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

  if (const Answer* failed = find_failed(answers)) {
    out.end_line();
    note("warprow: the request failed: {}\n", failed->error);
    return ExitCode::kRequestFailed;
  }
  if (as_text) {
    out.end_line();
  } else {
    AnswerJson json = answer_json(prompt, answers);
    if (options.stats) {
      json["stats"] = stats_json(engine.stats());
    }
    out.write(json_line(json));
  }
  if (options.stats || options.summary) {
    print_summary(count_output_tokens(answers), took.count(), engine.stats(), options.stats);
  }
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  return exit_code_of_signal(updates);
}

}  // namespace warprow
