// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "wire/model_runner_output.h"
#include "wire/sampling_params.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <memory>
#include <vector>

namespace warprow {

// A request as the scheduler takes it: validated, in token ids.
struct Request {
  uint64_t id = 0;              // chosen by the caller, unique among live requests
  std::vector<TokenId> prompt;  // -1 where `embeds` has a vector in place of an id
  std::shared_ptr<const EmbeddingVectors> embeds;  // null: no vectors
  SamplingParams params;
  int32_t max_tokens = 16;              // outputs, >= 1; max_model_len limits them too
  std::vector<TokenId> eos_token_ids;   // ends with kStop and no stop id; empty: EOS is ignored
  std::vector<TokenId> stop_token_ids;  // ends with kStop and that id
  std::vector<int32_t> token_lists;     // pack_token_lists; only with params.has_lists()
  int32_t grammar = -1;                 // the engine's number of its grammar; -1: none, so no mask
  int32_t priority = 0;                 // lower is more urgent; only under the priority policy
  bool may_draft = true;                // tokens are drafted for it if the scheduler drafts any
  int32_t adapter = -1;
  uint64_t cache_salt = 0;   // prefixes are shared only under the same salt
  bool copies_tail = false;  // its last, partly filled block is cached too: see KvCacheManager
};

enum class FinishReason : uint8_t {
  kNone,    // not finished
  kStop,    // EOS, a stop id, or a stop string
  kLength,  // max_tokens or max_model_len
  kAbort,   // by the client, or by sleep or shutdown of the engine
  kError,   // failed after admission
};

// The state of a live request.
struct RequestStatus {
  uint64_t id = 0;
  bool running = false;    // otherwise it waits for a row or for blocks
  bool preempted = false;  // waits to be admitted again
  RowId row = kNoRow;      // while running
  int32_t num_prompt_toks = 0;
  int32_t num_computed_toks = 0;  // in the KV cache, steps in flight included
  int32_t num_output_toks = 0;    // known
  int32_t max_output_toks = 0;
  int32_t num_cached_toks = 0;  // prompt tokens found in the prefix cache
  int32_t num_blocks = 0;       // of the KV cache, shared ones included
  int32_t priority = 0;
};

// What a step yielded for one request. Tokens that the row yielded after the request's end are left out.
struct RequestDelta {
  uint64_t id = 0;
  Span32 tokens;  // new outputs, in ModelRunnerOutput::token_ids (and logprobs, which are parallel)
  FinishReason reason = FinishReason::kNone;
  TokenId stop_token_id = -1;     // the stop id that ended it; -1 for EOS and all other reasons
  int32_t num_cached_tokens = 0;  // prompt tokens found in the prefix cache, at first admission
  RowFailure failure = RowFailure::kNone;  // with kError
  int32_t grammar = -1;                    // Request::grammar
  Span32 prompt_logprobs{};                // in ModelRunnerOutput::prompt_logprobs
  Span32 hidden{};                         // vectors of ModelRunnerOutput::hidden_states
  Span32 pooled{};          // vectors of ModelRunnerOutput::pooled; then there are no tokens
  Span32 drafts{};          // in ModelRunnerOutput::draft_token_ids; with a grammar, for its masks
  RowId row = kNoRow;       // the row it ran in
  uint32_t generation = 0;  // of that row, in that step
  bool operator==(const RequestDelta&) const = default;
};

}  // namespace warprow
