// SPDX-License-Identifier: Apache-2.0
#include "runner/output_ring.h"

#include "base/check.h"
#include "kernels/sample/sample.h"

#include <algorithm>
#include <chrono>

namespace warprow {
namespace {

// What the sampler puts in place of a token.
RowFailure failure_of(TokenId token) {
  return token == -static_cast<TokenId>(SampleError::kNothingLeft) ? RowFailure::kNothingLeft
                                                                   : RowFailure::kBadLogits;
}

}  // namespace

int64_t sampled_arrays_bytes(int32_t max_num_seqs, int32_t max_top) {
  return static_cast<int64_t>(sizeof(int32_t)) * max_num_seqs *
         (5 + 2 * static_cast<int64_t>(max_top));
}

SampledArrays sampled_arrays_at(std::byte* base, int32_t max_num_seqs, int32_t max_top) {
  const int64_t n = max_num_seqs;
  auto* words = reinterpret_cast<int32_t*>(base);
  SampledArrays arrays;
  arrays.num_sampled = words;
  arrays.num_rejected = words + n;
  arrays.tokens = words + 2 * n;
  arrays.rank = words + 3 * n;
  arrays.logprob = reinterpret_cast<float*>(words + 4 * n);
  arrays.top_ids = words + 5 * n;
  arrays.top_logprobs = reinterpret_cast<float*>(words + (5 + max_top) * n);
  return arrays;
}

OutputRing::OutputRing(Device& device, int32_t size, int32_t max_num_seqs, int32_t max_top)
    : max_top_(max_top),
      entry_words_(sampled_arrays_bytes(max_num_seqs, max_top) /
                   static_cast<int64_t>(sizeof(int32_t))),
      memory_(device.make_pinned(static_cast<size_t>(size) * static_cast<size_t>(entry_words_) *
                                 sizeof(int32_t))),
      entries_(static_cast<size_t>(size)) {
  const SampledArrays first = sampled_arrays_at(memory_.data(), max_num_seqs, max_top);
  for (Entry& entry : entries_) {
    entry.arrays = at_entry(first, (&entry - entries_.data()) * entry_words_);
    entry.pending.rows.reserve(static_cast<size_t>(max_num_seqs));
    entry.done = device.make_event();
  }
}

void OutputRing::submit(Stream& stream) {
  stream.record(*entries_[head_ % entries_.size()].done);
  ++head_;
  WR_CHECK_LE(head_ - tail_, entries_.size());
}

bool OutputRing::ready() const {
  return head_ != tail_ && entries_[tail_ % entries_.size()].done->reached();
}

void OutputRing::take(ModelRunnerOutput& output) {
  WR_CHECK(head_ != tail_, "no step is outstanding");
  Entry& entry = entries_[tail_ % entries_.size()];
  const auto before = std::chrono::steady_clock::now();
  entry.done->wait();
  wait_ns_ += (std::chrono::steady_clock::now() - before) / std::chrono::nanoseconds(1);
  const PendingStep& pending = entry.pending;
  output.clear();
  output.step = pending.step;
  output.has_logprobs = pending.with_logprobs;
  output.stats = pending.stats;
  for (size_t i = 0; i < pending.rows.size(); ++i) {
    RowOutput& row = output.rows.emplace_back();
    row.row = pending.rows[i].row;
    row.generation = pending.rows[i].generation;
    row.num_rejected = entry.arrays.num_rejected[i];
    const TokenId token = entry.arrays.tokens[i];
    const bool sampled = entry.arrays.num_sampled[i] > 0;
    row.failure = sampled && token < 0 ? failure_of(token) : RowFailure::kNone;
    row.kind = sampled || row.num_rejected > 0 ? RowResult::kTokens : RowResult::kNothing;
    row.tokens = {static_cast<int32_t>(output.token_ids.size()), sampled && token >= 0 ? 1 : 0};
    if (row.tokens.count > 0) {
      output.token_ids.push_back(token);
      if (pending.with_logprobs) {
        take_logprobs(entry, i, output);
      }
    }
  }
  ++tail_;
}

void OutputRing::take_logprobs(const Entry& entry, size_t logit, ModelRunnerOutput& output) const {
  const SampledArrays& arrays = entry.arrays;
  const int32_t wanted = entry.pending.rows[logit].num_logprobs;
  TokenLogprobs logprobs;
  logprobs.top = {static_cast<int32_t>(output.top_ids.size()), 0};
  if (wanted >= 0) {
    logprobs.logprob = arrays.logprob[logit];
    logprobs.rank = arrays.rank[logit];
    const size_t first = logit * static_cast<size_t>(max_top_);
    for (int32_t i = 0;
         i < std::min(wanted, max_top_) && arrays.top_ids[first + static_cast<size_t>(i)] >= 0;
         ++i) {
      output.top_ids.push_back(arrays.top_ids[first + static_cast<size_t>(i)]);
      output.top_logprobs.push_back(arrays.top_logprobs[first + static_cast<size_t>(i)]);
      ++logprobs.top.count;
    }
  }
  output.logprobs.push_back(logprobs);
}

}  // namespace warprow
