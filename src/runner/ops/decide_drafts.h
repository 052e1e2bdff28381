// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "base/philox.h"
#include "runner/ops/combine_tokens.h"
#include "runner/row_state.h"

#include <cstdint>

namespace warprow {

// For measurements: a random draw decides whether a draft is accepted. The draft's own logit, in the row of logits that it
// is verified by, becomes very large or very small. Also for drafts that no step verifies. One item per logit.
struct DecideDrafts {
  const RowState* rows = nullptr;      // dev [max_num_seqs]
  const int32_t* logit_row = nullptr;  // dev i32 [max_logits]
  const int32_t* logit_pos = nullptr;  // dev i32 [max_logits]
  DraftTokens drafts;
  float* logits = nullptr;  // dev f32 [.., vocab]  from logit `first` on
  int64_t first = 0;
  int64_t vocab = 0;
  double acceptance = 0;

  WR_HD void operator()(int64_t i) const {
    constexpr float kFar = 1e30F;
    const int32_t row = logit_row[first + i];
    if (row < 0) {
      return;
    }
    const RowState& state = rows[row];
    const int32_t position = logit_pos[first + i];
    const int64_t at = position - (state.total_len - 1);
    if (state.total_len == state.prefill_len || at >= drafts.max_drafts) {
      return;  // the first token has no draft
    }
    const int32_t draft = drafts.tokens[row * drafts.max_drafts + at];
    if (draft < 0 || draft >= vocab) {
      return;
    }
    const RandomKey key{state.generation, static_cast<uint32_t>(position), RandomPurpose::kAccept};
    logits[i * vocab + draft] = uniform_open(random_bits(key, 0)) < acceptance ? kFar : -kFar;
  }
};

}  // namespace warprow
