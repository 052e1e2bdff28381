// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/ids.h"
#include "wire/scheduler_output.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace warprow {

// Logprobs of one sampled token: its own, its rank (1 is the most likely) and the slice of the most likely tokens.
struct TokenLogprobs {
  float logprob = 0.0F;
  int32_t rank = 0;
  Span32 top;  // in ModelRunnerOutput::top_ids and top_logprobs, most likely first
  bool operator==(const TokenLogprobs&) const = default;
};

// Why no token could be drawn for a row.
enum class RowFailure : uint8_t {
  kNone,
  kBadLogits,   // a NaN, or no finite maximum
  kNothingLeft  // the request's constraints exclude every token
};

// The kind of a row's result.
enum class RowResult : uint8_t {
  kNothing,  // it had no logits
  kTokens,
  kPooled,
  kTensors
};

// What one row yields in a step.
struct RowOutput {
  RowId row = kNoRow;
  uint32_t generation = 0;  // of the request that the step ran; a stale result is dropped
  RowResult kind = RowResult::kNothing;
  // With kTokens: in token_ids, in order; none if the row was withheld or its first logits failed.
  Span32 tokens;
  // Tokens of the row in this step that the cache does not keep: rejected drafts, or the tokens of all its logits
  // if it was withheld. Without a failure, tokens.count + num_rejected is the row's num_logits.
  int32_t num_rejected = 0;
  // Why no token follows those above. Any value but kNone ends the request with an error.
  RowFailure failure = RowFailure::kNone;
  // With the row's first token, if the request asked for them: an entry in ModelRunnerOutput::prompt_logprobs for
  // each prompt token but the first.
  Span32 prompt_logprobs{};
  // If the request asked for them: vectors of ModelRunnerOutput::hidden_states; with the row's first token also
  // those of the prompt.
  Span32 hidden{};
  Span32 pooled{};   // with kPooled: vectors of ModelRunnerOutput::pooled
  Span32 tensors{};  // with kTensors: in ModelRunnerOutput::tensors
  // With ScheduledRow::wants_drafts: in draft_token_ids, the device's drafts for the row's next step, as many as a
  // step may have; -1: no draft, which no token equals.
  Span32 drafts{};
  bool operator==(const RowOutput&) const = default;
};

// Figures of one step, for stats, traces and tests.
struct StepStats {
  int32_t num_rows = 0;
  int32_t num_toks = 0;
  int32_t num_prefill_rows = 0;  // rows with tokens of their prefill in the step
  int32_t num_toks_padded = 0;   // computed by the forward
  int32_t graph_mode = 0;        // 0: eager, 1: in pieces, 2: whole
  int64_t row_state_bytes = 0;   // uploaded diffs of row state
  bool operator==(const StepStats&) const = default;
};

// Vectors of one width, for hidden states and pooled output. RowOutput names the row of each.
struct RowTensors {
  int32_t width = 0;
  std::vector<float> values;  // [num_vectors, width]
  [[nodiscard]] size_t num_vectors() const {
    return width > 0 ? values.size() / static_cast<size_t>(width) : 0;
  }
  bool operator==(const RowTensors&) const = default;
};

// A tensor that one stage of a pipeline of models passes to the next.
struct NamedTensor {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;  // row major
  bool operator==(const NamedTensor&) const = default;
};

// The result of one step. Flat and serialisable.
struct ModelRunnerOutput {
  int64_t step = 0;
  std::vector<RowOutput> rows;
  std::vector<TokenId> token_ids;
  std::vector<TokenId> draft_token_ids;  // pool of RowOutput::drafts

  bool has_logprobs = false;  // then logprobs is parallel to token_ids; rank 0 where not asked
  std::vector<TokenLogprobs> logprobs;
  std::vector<TokenLogprobs> prompt_logprobs;  // rank 0: the logits were not numbers
  std::vector<TokenId> top_ids;                // of both lists
  std::vector<float> top_logprobs;

  std::optional<RowTensors> hidden_states;
  std::optional<RowTensors> pooled;
  std::vector<NamedTensor> tensors;
  std::vector<uint8_t> connector_output;
  StepStats stats;

  void clear();
  // Capacity for the steps of max_rows rows with max_drafts drafts each and max_top top tokens per logit. Prompt
  // logprobs and tensors are not counted.
  void reserve(size_t max_rows, size_t max_drafts, size_t max_top);
  bool operator==(const ModelRunnerOutput&) const = default;
};

}  // namespace warprow
