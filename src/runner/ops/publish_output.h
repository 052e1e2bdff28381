// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/step_views.h"

#include <cstdint>

namespace warprow {

// A step's results, on the device or in the mapped ring that the host reads after the step's event.
struct SampledArrays {
  int32_t* num_sampled = nullptr;   // i32 [max_num_seqs]
  int32_t* num_rejected = nullptr;  // i32 [max_num_seqs]
  int32_t* tokens = nullptr;        // i32 [max_logits]
  float* logprob = nullptr;         // f32 [max_logits]
  int32_t* rank = nullptr;          // i32 [max_logits]
  int32_t* top_ids = nullptr;       // i32 [max_logits, max_top]
  float* top_logprobs = nullptr;    // f32 [max_logits, max_top]
};

// The same arrays, advanced by `words` 4-byte words.
WR_HD inline SampledArrays at_entry(const SampledArrays& arrays, int64_t words) {
  return {arrays.num_sampled + words,
          arrays.num_rejected + words,
          arrays.tokens + words,
          arrays.logprob + words,
          arrays.rank + words,
          arrays.top_ids + words,
          arrays.top_logprobs + words};
}

// Copies the results that the host reads into the mapped ring: for each row its counts and the tokens it yields.
// One item per batch_idx; logprobs only if the step has some.
struct PublishOutput {
  StepRows step;
  SampledArrays from;              // dev
  SampledArrays ring;              // pinned, mapped: entry 0
  const int32_t* entry = nullptr;  // dev i32 [1]  the step's entry of the ring
  int64_t entry_stride = 0;        // 4-byte words from one entry to the next
  int32_t max_top = 0;
  bool with_logprobs = false;

  WR_HD void operator()(int64_t batch_idx) const {
    if (entry == nullptr) {
      return;
    }
    const SampledArrays to = at_entry(ring, *entry * entry_stride);
    const int32_t num_sampled = from.num_sampled[batch_idx];
    to.num_sampled[batch_idx] = num_sampled;
    to.num_rejected[batch_idx] = from.num_rejected[batch_idx];
    const int64_t first = step.cu_num_logits[batch_idx];
    for (int64_t i = first; i < first + num_sampled; ++i) {
      to.tokens[i] = from.tokens[i];
      if (with_logprobs) {
        to.logprob[i] = from.logprob[i];
        to.rank[i] = from.rank[i];
        for (int64_t t = i * max_top; t < (i + 1) * max_top; ++t) {
          to.top_ids[t] = from.top_ids[t];
          to.top_logprobs[t] = from.top_logprobs[t];
          if (from.top_ids[t] < 0) {
            break;  // no entries after the first unused column
          }
        }
      }
    }
  }
};

// Copies the drafts of the step's rows into the mapped ring, after the proposer wrote them. One item per batch_idx.
struct PublishDrafts {
  StepRows step;
  const int32_t* drafts = nullptr;  // dev i32 [max_num_seqs, max_drafts] by row
  int64_t max_drafts = 0;
  int32_t* ring = nullptr;  // pinned, mapped i32 [max_num_seqs, max_drafts] by batch_idx: entry 0
  const int32_t* entry = nullptr;  // dev i32 [1]
  int64_t entry_stride = 0;        // 4-byte words from one entry to the next

  WR_HD void operator()(int64_t batch_idx) const {
    const int32_t row = step.idx_mapping[batch_idx];
    if (row < 0) {
      return;
    }
    int32_t* to = ring + *entry * entry_stride + batch_idx * max_drafts;
    for (int64_t i = 0; i < max_drafts; ++i) {
      to[i] = drafts[row * max_drafts + i];
    }
  }
};

}  // namespace warprow
