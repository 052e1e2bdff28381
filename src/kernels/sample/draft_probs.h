// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow {

// Drafts and the distributions that they were drawn from, by place: row * drafts of a row + number of the draft.
struct DraftProbs {
  int32_t* tokens =
      nullptr;  // dev i32 [places]  ids of the model that verifies them; negative: no draft
  float* probs = nullptr;  // dev f32 [places, width]
  int64_t width = 0;       // tokens of the drafter
  // dev i32 [width]  the model's ids by the drafter's, each once; null: they are the same
  const int32_t* ids = nullptr;
  // dev i32 [tokens of the model]  the drafter's ids by the model's, -1: it has none; with ids
  const int32_t* own_ids = nullptr;
};

}  // namespace warprow
