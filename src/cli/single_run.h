// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/exit_code.h"
#include "cli/flag_set.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "engine/engine.h"

namespace warprow {

enum class AnswerFormat { kText, kJson };

struct RunOptions {
  AnswerFormat format = AnswerFormat::kText;
  bool stats = false;    // the counters on stderr, and in the JSON
  bool summary = false;  // the speed on stderr; stats implies it
};

// --stats.
void add_stats_flag(FlagSet& flags, RunOptions& options);

// Streams one request's text to `text` (may be null) until its final update. A signal or a closed
// output aborts the request, whose final update is then awaited. The engine must not run other
// requests of this queue.
Answer stream_answer(Engine& engine, UpdateQueue& updates, ValidRequest request, Output* text);

// `warprow generate` with one prompt: the text as it comes, or JSON at the end.
Result<ExitCode> run_single(Engine& engine,
                            UpdateQueue& updates,
                            const GenerationRequest& request,
                            const RunOptions& options,
                            Output& out);

// kInterrupted or kTerminated for the signal that `updates` noted, kOk for none.
ExitCode exit_code_of_signal(const UpdateQueue& updates);

}  // namespace warprow
