// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "engine/engine.h"
#include "engine/observe.h"
#include "sched/request.h"
#include "wire/model_runner_output.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// What one step yielded for one request, on its way to the output thread.
struct OutputDelta {
  RequestId id = 0;
  Span32 tokens;             // in OutputBatch::token_ids
  int32_t logprobs_at = -1;  // of the first token, in OutputBatch::logprobs; -1: none
  Span32 prompt_logprobs;    // in OutputBatch::logprobs
  Span32 hidden;             // vectors of OutputBatch::hidden_states
  Span32 pooled;             // vectors of OutputBatch::pooled
  FinishReason reason = FinishReason::kNone;
  const char* error = "";  // a literal; with kError
  bool error_is_clients = false;
  TokenId stop_token_id = -1;
  int32_t num_cached_tokens = 0;
  EngineClock::time_point started;  // the first step that ran the request
  EngineClock::time_point at;       // when the output was there
};

// Everything new since the output thread's last take: flat lists, so that a steady stream of steps allocates
// nothing.
struct OutputBatch {
  std::vector<OutputDelta> deltas;
  std::vector<TokenId> token_ids;
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenId> top_ids;
  std::vector<float> top_logprobs;
  RowTensors hidden_states;
  RowTensors pooled;

  // Keeps all capacity.
  void clear();
  // Reserves room for num_deltas deltas of one token each, without logprobs.
  void reserve(size_t num_deltas);
  // Copies the parts of the step's output that a delta names in tokens, prompt_logprobs, hidden and pooled, with its
  // logprobs; the delta then names the copy.
  void copy_from(const ModelRunnerOutput& step, OutputDelta& delta);
  // Moves all of `later` to the end of this batch; `later` is then empty.
  void append(OutputBatch& later);

  [[nodiscard]] std::span<const TokenId> tokens_of(const OutputDelta& delta) const {
    return slice(token_ids, delta.tokens);
  }

 private:
  // Copies a slice of a step's list to the end of logprobs.
  void add_logprobs(const ModelRunnerOutput& step,
                    const std::vector<TokenLogprobs>& list,
                    Span32 slice);
};

}  // namespace warprow
