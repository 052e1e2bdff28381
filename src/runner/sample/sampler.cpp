// SPDX-License-Identifier: Apache-2.0
#include "runner/sample/sampler.h"

#include "kernels/sample/sample.h"
#include "runner/output_ring.h"

#include <cstddef>

namespace warprow {

// SampleParams mirrors SamplingParams for the kernels: one staged struct serves both types.
static_assert(sizeof(SampleParams) == sizeof(SamplingParams));
static_assert(offsetof(SampleParams, top_k) == offsetof(SamplingParams, top_k));
static_assert(offsetof(SampleParams, seed) == offsetof(SamplingParams, seed));
static_assert(offsetof(SampleParams, num_logprobs) == offsetof(SamplingParams, num_logprobs));
static_assert(offsetof(SampleParams, min_tokens) == offsetof(SamplingParams, min_tokens));
static_assert(offsetof(SampleParams, repetition_penalty) ==
              offsetof(SamplingParams, repetition_penalty));
static_assert(offsetof(SampleParams, frequency_penalty) ==
              offsetof(SamplingParams, frequency_penalty));
static_assert(offsetof(SampleParams, presence_penalty) ==
              offsetof(SamplingParams, presence_penalty));
static_assert(offsetof(SampleParams, flags) == offsetof(SamplingParams, flags));
static_assert(kFlagTokenLists == SamplingParams::kHasTokenLists);
static_assert(kFlagLogprobIds == SamplingParams::kHasLogprobIds);

namespace {

// Points the results of `n` draws to `to`, with the `num_top` most likely tokens of each.
void set_results(SampleArgs& args, const SampledArrays& to, int64_t n, int32_t num_top) {
  args.sampled = make_view(to.tokens, n);
  args.logprob = make_view(to.logprob, n);
  args.rank = make_view(to.rank, n);
  args.top_ids = make_view(to.top_ids, n, num_top);
  args.top_logprobs = make_view(to.top_logprobs, n, num_top);
}

TokenHistory token_history(const RequestRows& rows) {
  return {rows.store().tokens(),
          &rows.states()->prompt_len,
          &rows.states()->prefill_len,
          sizeof(RowState) / sizeof(int32_t)};
}

// The mode of report(): always raw, since only draws have processed logits.
LogprobsMode raw_mode(LogprobsMode mode) {
  return is_logits(mode) ? LogprobsMode::kRawLogits : LogprobsMode::kRawLogprobs;
}

SampledArrays alloc_arrays(Arena& workspace, int32_t max_num_seqs, int32_t max_logits) {
  const int64_t bytes = sampled_arrays_bytes(max_num_seqs, max_logits, Sampler::kMaxTop);
  return sampled_arrays_at(workspace.alloc_bytes(static_cast<size_t>(bytes)),
                           max_num_seqs,
                           max_logits,
                           Sampler::kMaxTop);
}

}  // namespace

Sampler::Sampler(Device& device, Arena& workspace, const Sizes& sizes, LogprobsMode mode)
    : arrays_(alloc_arrays(workspace, sizes.max_num_seqs, sizes.max_logits)),
      errors_(workspace.alloc<int32_t>(sizes.max_rows)),
      mode_(mode) {
  const auto bytes = static_cast<int64_t>(sample_scratch_bytes(
      device.facts().kind, sizes.vocab_size, sizes.max_rows, device.facts().num_threads));
  scratch_ = make_view(workspace.alloc<std::byte>(bytes), bytes);
}

void Sampler::sample(Stream& stream,
                     View<const float, 2> logits,
                     const InputBuffers& inputs,
                     const RequestRows& rows,
                     uint32_t rules) {
  const int64_t n = logits.shape[0];
  SampleArgs args;
  args.logits = logits;
  args.logit_row = make_view<const int32_t>(inputs.logit_row, n);
  args.logit_pos = make_view<const int32_t>(inputs.logit_pos, n);
  args.params =
      make_view(reinterpret_cast<const SampleParams*>(rows.params()), rows.max_num_seqs());
  args.tokens = token_history(rows);
  args.stop_ids = rows.stop_ids();
  args.stop_ids_stride = RequestRows::kStopIdsWidth;
  args.token_lists = rows.token_lists();
  args.token_lists_stride = kTokenListsWidth;
  set_results(args, arrays_, n, kMaxTop);
  args.error = make_view(errors_, n);
  args.scratch = scratch_;
  args.rules = rules;
  args.logprobs_mode = mode_;
  warprow::sample(stream, args);
}

void Sampler::report(Stream& stream,
                     View<const float, 2> logits,
                     View<const int32_t, 1> tokens,
                     int32_t num_top,
                     const SampledArrays& to) const {
  const int64_t n = logits.shape[0];
  SampleArgs args;
  args.logits = logits;
  args.given = tokens;
  args.num_given_top = num_top;
  set_results(args, to, n, kMaxPromptTop);
  args.error = make_view(errors_, n);
  args.scratch = scratch_;
  args.rules = kSampleLogprobs;
  args.logprobs_mode = raw_mode(mode_);
  warprow::sample(stream, args);
}

}  // namespace warprow
