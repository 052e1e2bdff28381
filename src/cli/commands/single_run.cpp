// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/single_run.h"

#include "base/check.h"
#include "cli/note.h"
#include "cli/run_summary.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <functional>
#include <numeric>
#include <optional>
#include <span>
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

// Takes the updates of the requests with these ids until each has ended.
std::vector<Answer> collect_answers(UpdateQueue& updates,
                                    std::span<const RequestId> ids,
                                    const std::function<void()>& abort,
                                    Output* text) {
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
      abort();
      aborted = true;
    }
  }
  return answers;
}

using Clock = std::chrono::steady_clock;

// The end of a run: the JSON, if its text was not written before, and the summary.
Result<ExitCode> report(const Engine& engine,
                        const UpdateQueue& updates,
                        std::span<const Answer> answers,
                        Clock::time_point start,
                        const std::function<AnswerJson()>& make_json,
                        const RunOptions& options,
                        Output& out) {
  const std::chrono::duration<double> took = Clock::now() - start;
  if (const Answer* failed = find_failed(answers)) {
    out.end_line();
    note("warprow: the request failed: {}\n", failed->error);
    return ExitCode::kRequestFailed;
  }
  if (options.format == AnswerFormat::kText) {
    out.end_line();
  } else {
    AnswerJson json = make_json();
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

AnswerJson beams_json(std::span<const TokenId> prompt, std::span<const Answer> answers) {
  AnswerJson json = answer_json(prompt, answers);
  for (size_t i = 0; i < answers.size(); ++i) {
    const std::vector<LogprobEntry>& entries = answers[i].logprobs;
    json["choices"][i]["cumulative_logprob"] =
        std::accumulate(entries.begin(), entries.end(), 0.0, [](double sum, const auto& entry) {
          return sum + double{entry.logprob};
        });
  }
  return json;
}

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
  const auto abort = [&] {
    std::for_each(ids.begin(), ids.end(), [&](RequestId id) { engine.abort(id); });
  };
  return collect_answers(updates, ids, abort, text);
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
  const Clock::time_point start = Clock::now();
  const std::vector<Answer> answers = stream_answers(
      engine, updates, *valid, options.format == AnswerFormat::kText ? &out : nullptr);
  const auto make_json = [&] { return answer_json(prompt, answers); };
  return report(engine, updates, answers, start, make_json, options, out);
}

Result<ExitCode> run_beams(Engine& engine,
                           UpdateQueue& updates,
                           const GenerationRequest& request,
                           const BeamOptions& beams,
                           const RunOptions& options,
                           Output& out) {
  const Result<std::shared_ptr<BeamSearch>> made = BeamSearch::make(engine, request, beams);
  if (!made) {
    return tl::unexpected(refused_request(made.error()));
  }
  BeamSearch& search = **made;
  std::vector<RequestId> choices(static_cast<size_t>(beams.width));
  std::iota(choices.begin(), choices.end(), RequestId{0});
  const Clock::time_point start = Clock::now();
  search.start([&updates](size_t choice, const RequestUpdate& update) {
    RequestUpdate named = update;
    named.id = choice;
    updates.push(named);
  });
  const std::vector<Answer> answers = collect_answers(
      updates,
      choices,
      [&search] { search.abort(); },
      options.format == AnswerFormat::kText ? &out : nullptr);
  const auto make_json = [&] { return beams_json(search.prompt_token_ids(), answers); };
  return report(engine, updates, answers, start, make_json, options, out);
}

}  // namespace warprow
