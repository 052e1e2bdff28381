// SPDX-License-Identifier: Apache-2.0
#include "runner/sample/sampler.h"

#include "base/math.h"
#include "kernels/sample/draw_drafts.h"
#include "kernels/sample/sample.h"
#include "runner/output_ring.h"

#include <algorithm>
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

// Points the results of `n` draws to `to`, from its entry `first` on, with the `num_top` most likely tokens of each.
void set_results(
    SampleArgs& args, const SampledArrays& to, int64_t first, int64_t n, int32_t num_top) {
  args.sampled = make_view(to.tokens + first, n);
  args.logprob = make_view(to.logprob + first, n);
  args.rank = make_view(to.rank + first, n);
  args.top_ids = make_view(to.top_ids + first * num_top, n, num_top);
  args.top_logprobs = make_view(to.top_logprobs + first * num_top, n, num_top);
}

TokenHistory token_history(const RequestRows& rows) {
  return {rows.store().tokens(),
          &rows.states()->prompt_len,
          &rows.states()->prefill_len,
          sizeof(RowState) / sizeof(int32_t)};
}

View<const SampleParams, 1> params_of(const RequestRows& rows) {
  return make_view(reinterpret_cast<const SampleParams*>(rows.params()), rows.max_num_seqs());
}

// The mode of report(): always raw, since only draws have processed logits.
LogprobsMode raw_mode(LogprobsMode mode) {
  return is_logits(mode) ? LogprobsMode::kRawLogits : LogprobsMode::kRawLogprobs;
}

// Arrays for max_logits results, with room for equal shares of them.
SampledArrays alloc_arrays(Arena& workspace,
                           int32_t max_num_seqs,
                           int32_t max_logits,
                           int32_t max_top,
                           const GroupPlace& place) {
  const int32_t room = round_up(max_logits, place.size);
  const int64_t bytes = sampled_arrays_bytes(max_num_seqs, room, max_top);
  return sampled_arrays_at(
      workspace.alloc_bytes(static_cast<size_t>(bytes)), max_num_seqs, room, max_top);
}

}  // namespace

Sampler::Sampler(
    Device& device, Arena& workspace, const Sizes& sizes, LogprobsMode mode, const RankGroup& ranks)
    : ranks_(ranks),
      arrays_(alloc_arrays(
          workspace, sizes.max_num_seqs, sizes.max_logits, sizes.max_top, ranks.place)),
      most_rows_(ranks.place.largest_share(sizes.max_rows)),
      errors_(workspace.alloc<int32_t>(most_rows_)),
      max_top_(sizes.max_top),
      mode_(mode) {
  if (!ranks.alone()) {
    reported_ = alloc_arrays(workspace, 0, sizes.max_rows, kMaxPromptTop, ranks.place);
  }
  const auto bytes = static_cast<int64_t>(sample_scratch_bytes(
      device.facts().kind, sizes.vocab_size, most_rows_, device.facts().num_threads));
  scratch_ = make_view(workspace.alloc<std::byte>(bytes), bytes);
}

void Sampler::sample(Stream& stream,
                     const LogitsShare& logits,
                     const InputBuffers& inputs,
                     const RequestRows& rows,
                     uint32_t rules) {
  const int64_t n = logits.maxima.empty() ? logits.rows.shape[0] : logits.n;
  SampleArgs args;
  args.logits = logits.rows;
  args.maxima = logits.maxima;
  args.logit_row = make_view<const int32_t>(inputs.logit_row + logits.first, n);
  args.logit_pos = make_view<const int32_t>(inputs.logit_pos + logits.first, n);
  args.params = params_of(rows);
  args.tokens = token_history(rows);
  args.stop_ids = rows.stop_ids();
  args.stop_ids_stride = RequestRows::kStopIdsWidth;
  args.token_lists = rows.token_lists();
  args.token_lists_stride = kTokenListsWidth;
  set_results(args, arrays_, logits.first, n, max_top_);
  args.error = make_view(errors_, n);
  if (draft_at_ != nullptr) {
    args.draft_at = make_view(draft_at_ + logits.first, n);
    args.drafts = drafts_;
  }
  args.scratch = scratch_;
  args.rules = rules;
  args.logprobs_mode = mode_;
  if (n > 0) {  // a rank may have no share of few logits
    warprow::sample(stream, args);
  }
  gather(stream, arrays_, logits.n, max_top_, (rules & kSampleLogprobs) != 0);
}

void Sampler::verify_by_ratio(const int32_t* draft_at, const DraftProbs& drafts) {
  draft_at_ = draft_at;
  drafts_ = drafts;
}

void Sampler::draw_drafts(Stream& stream,
                          const View<const float, 2>& logits,
                          const int32_t* idx_mapping,
                          int32_t number,
                          const RequestRows& rows) const {
  DrawDraftsArgs args;
  args.params = params_of(rows);
  args.total_len = &rows.states()->total_len;
  args.state_stride = sizeof(RowState) / sizeof(int32_t);
  args.number = number;
  args.max_drafts = static_cast<int32_t>(rows.drafts().max_drafts);
  args.drafts = drafts_;
  args.scratch = scratch_;
  // Every rank draws for all rows, and has scratch for its share of logits.
  const int64_t n = logits.shape[0];
  for (int64_t first = 0; first < n; first += most_rows_) {
    const int64_t count = std::min(most_rows_, n - first);
    args.logits = make_strided(logits.row(first), count, logits.shape[1], logits.stride[0]);
    args.row = make_view(idx_mapping + first, count);
    warprow::draw_drafts(stream, args);
  }
}

// Gives every rank the results of all ranks' shares of n logits. Entries behind the n are stale.
void Sampler::gather(Stream& stream,
                     const SampledArrays& arrays,
                     int64_t n,
                     int32_t max_top,
                     bool with_logprobs) const {
  if (ranks_.alone()) {
    return;
  }
  const auto gather_entries = [&](auto* entries, int64_t width) {
    const auto words = static_cast<size_t>(ranks_.place.largest_share(n) * width);
    const size_t bytes = words * sizeof(*entries);
    auto* all = reinterpret_cast<std::byte*>(entries);
    const auto rank = static_cast<size_t>(ranks_.place.rank);
    ranks_.comm->all_gather(stream, all + rank * bytes, all, bytes);
  };
  gather_entries(arrays.tokens, 1);
  if (with_logprobs) {
    gather_entries(arrays.logprob, 1);
    gather_entries(arrays.rank, 1);
    gather_entries(arrays.top_ids, max_top);
    gather_entries(arrays.top_logprobs, max_top);
  }
}

void Sampler::report(Stream& stream,
                     const LogitsShare& logits,
                     View<const int32_t, 1> tokens,
                     int32_t num_top,
                     const SampledArrays& to) const {
  const int64_t n = logits.rows.shape[0];
  SampleArgs args;
  args.logits = logits.rows;
  args.given = make_view(tokens.data + logits.first, n);
  args.num_given_top = num_top;
  set_results(args, ranks_.alone() ? to : reported_, logits.first, n, kMaxPromptTop);
  args.error = make_view(errors_, n);
  args.scratch = scratch_;
  args.rules = kSampleLogprobs;
  args.logprobs_mode = raw_mode(mode_);
  if (n > 0) {
    warprow::sample(stream, args);
  }
  if (ranks_.alone()) {
    return;
  }
  gather(stream, reported_, logits.n, kMaxPromptTop, true);
  const auto copy = [&](auto* dst, const auto* src, int64_t width) {
    stream.copy_to_host(dst, src, static_cast<size_t>(logits.n * width) * sizeof(*dst));
  };
  copy(to.tokens, reported_.tokens, 1);
  copy(to.logprob, reported_.logprob, 1);
  copy(to.rank, reported_.rank, 1);
  copy(to.top_ids, reported_.top_ids, kMaxPromptTop);
  copy(to.top_logprobs, reported_.top_logprobs, kMaxPromptTop);
}

}  // namespace warprow
