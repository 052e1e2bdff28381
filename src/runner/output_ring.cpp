// SPDX-License-Identifier: Apache-2.0
#include "runner/output_ring.h"

#include "base/check.h"
#include "kernels/sample/sample.h"

#include <algorithm>
#include <chrono>

namespace warprow {
namespace {

// Maps the negative value that the sampler stores in place of a token.
RowFailure failure_of(TokenId token) {
  return token == -static_cast<TokenId>(SampleError::kNothingLeft) ? RowFailure::kNothingLeft
                                                                   : RowFailure::kBadLogits;
}

}  // namespace

int64_t sampled_arrays_bytes(int32_t max_num_seqs, int32_t max_logits, int32_t max_top) {
  return static_cast<int64_t>(sizeof(int32_t)) *
         (int64_t{2} * max_num_seqs + max_logits * (3 + 2 * int64_t{max_top}));
}

SampledArrays sampled_arrays_at(std::byte* base,
                                int32_t max_num_seqs,
                                int32_t max_logits,
                                int32_t max_top) {
  const int64_t n = max_logits;
  auto* words = reinterpret_cast<int32_t*>(base);
  SampledArrays arrays;
  arrays.num_sampled = words;
  arrays.num_rejected = words + max_num_seqs;
  words += int64_t{2} * max_num_seqs;
  arrays.tokens = words;
  arrays.rank = words + n;
  arrays.logprob = reinterpret_cast<float*>(words + 2 * n);
  arrays.top_ids = words + 3 * n;
  arrays.top_logprobs = reinterpret_cast<float*>(words + (3 + max_top) * n);
  return arrays;
}

OutputRing::OutputRing(Device& device, const StepLimits& limits, int32_t max_top)
    : max_top_(max_top), max_drafts_(limits.max_drafts) {
  const int64_t word = sizeof(int32_t);
  const int64_t arrays_words =
      sampled_arrays_bytes(limits.max_num_seqs, limits.max_logits(), max_top) / word;
  entry_words_ = arrays_words + int64_t{limits.max_num_seqs} * max_drafts_;
  entries_.resize(static_cast<size_t>(limits.max_steps_in_flight));
  memory_ = device.make_pinned(entries_.size() * static_cast<size_t>(entry_words_ * word));
  const SampledArrays first =
      sampled_arrays_at(memory_.data(), limits.max_num_seqs, limits.max_logits(), max_top);
  for (Entry& entry : entries_) {
    const int64_t at = (&entry - entries_.data()) * entry_words_;
    entry.arrays = at_entry(first, at);
    entry.drafts = memory_.as<int32_t>() + at + arrays_words;
    entry.pending.rows.reserve(static_cast<size_t>(limits.max_num_seqs));
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
  output.rows.resize(pending.rows.size());
  output.token_ids.resize(pending.num_logits);
  size_t num_tokens = 0;
  size_t first_logit = 0;
  for (size_t i = 0; i < pending.rows.size(); ++i) {
    const OutputRow& from = pending.rows[i];
    RowOutput& row = output.rows[i];
    row.row = from.row;
    row.generation = from.generation;
    if (from.num_logits > 0) {
      row.kind = RowResult::kTokens;
      row.num_rejected = entry.arrays.num_rejected[i];
      row.tokens.begin = static_cast<int32_t>(num_tokens);
      const size_t end = first_logit + static_cast<size_t>(entry.arrays.num_sampled[i]);
      for (size_t logit = first_logit; logit < end; ++logit) {
        const TokenId token = entry.arrays.tokens[logit];
        if (token < 0) {  // none of the row's later tokens could be drawn
          row.failure = failure_of(token);
          break;
        }
        output.token_ids[num_tokens++] = token;
        ++row.tokens.count;
        if (pending.with_logprobs) {
          take_logprobs(entry, from, logit, output);
        }
      }
      first_logit += static_cast<size_t>(from.num_logits);
    }
    if (from.wants_drafts) {
      take_drafts(entry, i, output);
    }
  }
  output.token_ids.resize(num_tokens);
  ++tail_;
}

void OutputRing::take_drafts(const Entry& entry,
                             size_t batch_idx,
                             ModelRunnerOutput& output) const {
  const int32_t* drafts = entry.drafts + static_cast<int64_t>(batch_idx) * max_drafts_;
  output.rows[batch_idx].drafts = {static_cast<int32_t>(output.draft_token_ids.size()), max_drafts_};
  output.draft_token_ids.insert(output.draft_token_ids.end(), drafts, drafts + max_drafts_);
}

void OutputRing::take_logprobs(const Entry& entry,
                               const OutputRow& row,
                               size_t logit,
                               ModelRunnerOutput& output) const {
  const SampledArrays& arrays = entry.arrays;
  const int32_t wanted = row.num_logprobs;
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
