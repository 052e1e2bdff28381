// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/answer.h"
#include "cli/exit_code.h"
#include "cli/flags/flag_set.h"
#include "cli/output.h"
#include "cli/update_queue.h"
#include "engine/beam_search.h"
#include "engine/engine.h"

#include <string>
#include <vector>

namespace warprow {

enum class AnswerFormat { kText, kJson };

struct RunOptions {
  AnswerFormat format = AnswerFormat::kText;
  bool stats = false;    // the counters on stderr, and in the JSON
  bool summary = false;  // the speed on stderr; stats implies it
  std::string adapter;   // of requests; empty: the model itself
};

// --stats.
void add_stats_flag(FlagSet& flags, RunOptions& options);

// Runs a request until the final update of each choice and returns the answers in the order of the choices. `text` (may
// be null) gets the first choice as a stream and then the others, under headings if there are several. A signal or a
// closed output aborts all choices; the function still waits for their final updates. The engine must not run other
// requests that use this queue.
std::vector<Answer> stream_answers(Engine& engine,
                                   UpdateQueue& updates,
                                   const ValidRequest& request,
                                   Output* text);

// `warprow generate` with one prompt: streams the text, or writes JSON at the end.
Result<ExitCode> run_single(Engine& engine,
                            UpdateQueue& updates,
                            const GenerationRequest& request,
                            const RunOptions& options,
                            Output& out);

// `warprow generate --beam-width`: writes the sequences at the end, best first. In the JSON each has its logprobs, and their
// sum as cumulative_logprob.
Result<ExitCode> run_beams(Engine& engine,
                           UpdateQueue& updates,
                           const GenerationRequest& request,
                           const BeamOptions& beams,
                           const RunOptions& options,
                           Output& out);

// kInterrupted or kTerminated for the signal that `updates` has recorded; kOk without a signal.
ExitCode exit_code_of_signal(const UpdateQueue& updates);

}  // namespace warprow
