// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/philox.h"
#include "device/view.h"
#include "kernels/linear/output_max.h"
#include "kernels/op.h"
#include "kernels/sample/draft_probs.h"
#include "kernels/sample/sample_params.h"
#include "kernels/sample/token_history.h"
#include "kernels/sample/token_lists.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Errors of a logits row.
enum class SampleError : int32_t {
  kNone = 0,
  kBadLogits = 1,   // a NaN, or no finite maximum
  kNothingLeft = 2  // the rules on tokens set every logit to -inf
};

// What logprobs report, named as in vLLM's logprobs_mode. "Processed" is after every rule: divided by the
// temperature, -inf for a token that could not be drawn.
enum class LogprobsMode : uint8_t {
  kRawLogprobs,
  kRawLogits,
  kProcessedLogprobs,
  kProcessedLogits,
};
WR_HD constexpr bool is_processed(LogprobsMode mode) {
  return mode == LogprobsMode::kProcessedLogprobs || mode == LogprobsMode::kProcessedLogits;
}
WR_HD constexpr bool is_logits(LogprobsMode mode) {
  return mode == LogprobsMode::kRawLogits || mode == LogprobsMode::kProcessedLogits;
}

// The rules that a batch needs. Backends may skip rules that no row needs. A superfluous bit does not change
// results.
enum SampleRules : uint32_t {
  kSampleRandom = 1,       // a row with a temperature
  kSampleCut = 2,          // a random row with top_k, top_p or min_p
  kSampleLogprobs = 4,     // a row that reports logprobs
  kSamplePenalties = 8,    // a row with a penalty or min_tokens
  kSampleTokenLists = 16,  // a row with allowed ids, bad words or biases
};
inline constexpr uint32_t kAllSampleRules = 31;

// Draws one token per logits row, or reports on a given one. Each rule has its own file (rules/). Their order: raw
// logprobs (logprobs.h), allowed ids (allowed_ids.h), bad words (bad_words.h), min_tokens (min_tokens.h),
// biases (logit_bias.h), penalties (penalties.h), greedy or temperature (temperature.h), min_p (min_p.h),
// top-k and top-p (top_k_top_p.h), the draw (gumbel.h) or the verification of a draft (ratio.h), processed
// logprobs.
//
// Formula: greedy: the largest logit, lowest id at ties. Otherwise x = logit / temperature, and the token is
//   the survivor with the largest x + gumbel(seed, position, id). Where draft_at names a draft, the token of a random row
//   is that draft if p / q accepts it, else one drawn from max(0, p - q). p: softmax of x over the survivors.
// Shapes: logits [n, vocab] (any row stride); logit_row [n] indexes params, negative: the row yields no
//   token; logit_pos [n] is the position of the logits' input token; sampled, logprob, rank, error [n];
//   top_ids, top_logprobs [n, max_top].
// Mapping: CPU: rows in parallel, lanes along the vocabulary. CUDA: a CTA per tile of a row, then a CTA per
//   row (cuda/stages.h), which also verifies drafts (cuda/verify_draft.cuh).
// Bytes moved: CPU: one pass over the row for a greedy token, 2 to 5 otherwise, from cache. Rules on tokens
//   add a copy of the row and three passes over the row's tokens. A draft adds two passes, a rejected one two
//   more. CUDA: one pass, a second one for rows with top_p alone and flat logits; processed logprobs read a row
//   several times; drafts as on the CPU, by one CTA.
// Numerics: a row's result depends on that row alone. Raw logits are not modified. Log-probabilities and the
//   nucleus' mass are summed in double over float terms.
// Preconditions: parameters in their ranges (wire/sampling_params.h); scratch has sample_scratch_bytes. Rows
//   without a token get sampled -1, rows with an error -error. Without logprobs, logprob is 0 and rank 0. The
//   first unused column of top_ids is -1; later columns are not written.
// Origin: Gumbel-max as in Maddison et al., "A* Sampling", 2014; the order of rules is vLLM's.
struct SampleArgs {
  View<const float, 2> logits;
  // dev [n, vocab / kMaxOutputs] or empty. If set: the largest logits, of which each row takes the largest. There
  // are no logits, and no row needs a rule. CUDA.
  View<const OutputMax, 2> maxima;
  View<const int32_t, 1> logit_row;
  View<const int32_t, 1> logit_pos;
  View<const SampleParams, 1> params;
  TokenHistory tokens;  // indexed by logit_row; empty: no rules on tokens
  // i32 [rows, stop_ids_stride]  a count, then ids; read for rows with min_tokens
  const int32_t* stop_ids = nullptr;
  int64_t stop_ids_stride = 0;
  // i32 [rows, token_lists_stride]  see token_lists.h; read for rows with kFlagTokenLists
  const int32_t* token_lists = nullptr;
  int64_t token_lists_stride = 0;
  View<int32_t, 1> sampled;
  View<float, 1> logprob;
  View<int32_t, 1> rank;
  View<int32_t, 2> top_ids;
  View<float, 2> top_logprobs;
  View<int32_t, 1> error;  // SampleError
  LogprobsMode logprobs_mode = LogprobsMode::kRawLogprobs;
  // i32 [n] or empty. If set: each row reports on this token and on the num_given_top most likely ones. No
  // token is drawn, no rule applies, and logit_row, logit_pos and params are not read. The mode must be raw.
  View<const int32_t, 1> given;
  int32_t num_given_top = 0;
  // i32 [n] or empty. The place in `drafts` of the draft behind each logit, negative: there is none.
  View<const int32_t, 1> draft_at;
  DraftProbs drafts;
  RandomPurpose purpose = RandomPurpose::kSample;  // of ordinary draws
  View<std::byte, 1> scratch;
  uint32_t rules = kAllSampleRules;
};

WR_OP(sample, SampleArgs);

// Checks that each array has one entry for each logits row. All backends call it.
inline void check_sample_shapes(const SampleArgs& args) {
  const bool maxima = !args.maxima.empty();
  const int64_t n = maxima ? args.maxima.shape[0] : args.logits.shape[0];
  const bool given = !args.given.empty();
  WR_CHECK(!maxima || (args.logits.empty() && !given && args.rules == 0));
  WR_CHECK(!given || !is_processed(args.logprobs_mode));
  for (const int64_t size : {given ? args.given.shape[0] : args.logit_row.shape[0],
                             given ? n : args.logit_pos.shape[0],
                             args.sampled.shape[0],
                             args.logprob.shape[0],
                             args.rank.shape[0],
                             args.top_ids.shape[0],
                             args.top_logprobs.shape[0],
                             args.error.shape[0]}) {
    WR_CHECK_EQ(size, n);
  }
  WR_CHECK(args.draft_at.empty() || args.draft_at.shape[0] == n);
  WR_CHECK_EQ(args.top_ids.shape[1], args.top_logprobs.shape[1]);
  WR_CHECK(maxima || args.logits.shape[1] > 0);
}

// num_workers: of the CPU's pool. max_rows: logits rows of the largest step.
namespace cpu {
size_t sample_scratch_bytes(int64_t vocab, int32_t num_workers);
}
namespace cuda {
size_t sample_scratch_bytes(int64_t vocab, int64_t max_rows);
}
inline size_t sample_scratch_bytes(DeviceKind device,
                                   int64_t vocab,
                                   int64_t max_rows,
                                   int32_t num_workers) {
  return device == DeviceKind::kCuda ? cuda::sample_scratch_bytes(vocab, max_rows)
                                     : cpu::sample_scratch_bytes(vocab, num_workers);
}

}  // namespace warprow
