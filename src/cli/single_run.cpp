// SPDX-License-Identifier: Apache-2.0
#include "cli/single_run.h"

#include "cli/run_summary.h"

#include <chrono>
#include <csignal>
#include <cstdio>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {

void add_stats_flag(FlagSet& flags, RunOptions& options) {
  flags.add_switch(
      {.name = "stats",
       .value = "",
       .group = "Output",
       .help = "speed and the engine's counters on stderr, the counters also in the JSON"},
      [&options](bool on) { options.stats = on; });
}

Answer stream_answer(Engine& engine, UpdateQueue& updates, ValidRequest request, Output* text) {
  Answer answer;
  const RequestId id = engine.submit(std::move(request), updates.callback());
  bool aborted = false;
  while (!answer.finished()) {
    std::optional<RequestUpdate> update = updates.take();
    if (update && text != nullptr && !aborted) {
      text->write(update->text);
    }
    if (update) {
      answer.add(std::move(*update));
    }
    const bool unwanted = updates.signal() != 0 || (text != nullptr && text->closed());
    if (unwanted && !aborted) {
      engine.abort(id);
      aborted = true;
    }
  }
  return answer;
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
    return tl::unexpected(valid.error());
  }
  const std::vector<TokenId> prompt = valid->prompt_token_ids();
  const bool as_text = options.format == AnswerFormat::kText;
  const auto start = std::chrono::steady_clock::now();
  const Answer answer = stream_answer(engine, updates, std::move(*valid), as_text ? &out : nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;

  if (answer.last.finish_reason == FinishReason::kError) {
    out.end_line();
    fmt::print(stderr, "warprow: the request failed: {}\n", answer.last.error);
    return ExitCode::kRequestFailed;
  }
  if (as_text) {
    out.end_line();
  } else {
    AnswerJson json = answer_json(prompt, answer);
    if (options.stats) {
      json["stats"] = stats_json(engine.stats());
    }
    out.write(json_line(json));
  }
  if (options.stats || options.summary) {
    print_summary(answer.last.num_output_tokens, took.count(), engine.stats(), options.stats);
  }
  if (Result<void> written = out.status(); !written) {
    return tl::unexpected(written.error());
  }
  return exit_code_of_signal(updates);
}

}  // namespace warprow
