// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// In an entry's list of masks: the row has no mask, and its logits stay unchanged.
inline constexpr int32_t kNoMask = -1;
// In an entry's list of masks, and then in logit_row: the row's mask is not ready yet. The row yields no
// token in this step, and a later step computes its last token again.
inline constexpr int32_t kWithheldRow = -2;

// The masks of one step, in host memory that the device reads in place: a list i32 [max_rows] that maps
// logits rows to masks, then the masks u32 [max_rows, mask_words]. Bit t % 32 of word t / 32 is set if token
// t is allowed.
constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }
constexpr int64_t mask_entry_words(int64_t max_rows, int64_t vocab) {
  return max_rows * (1 + mask_words(vocab));
}

// Masks logits in place, before all other rules: these apply only to tokens that the row's grammar allows.
//
// Formula: logits[i, t] = -inf if bit t of the mask of row first + i is 0; logit_row[i] = kWithheldRow if row i is
//   withheld.
// Shapes: logits [m, vocab] (any row stride): rows first to first + m of n; logit_row [n]; entry [1]: index of
//   the step's entry in the ring; ring: entries of mask_entry_words(max_rows, vocab).
// Mapping: CPU: rows in parallel. CUDA: a warp for every 1024 tokens of a row.
// Bytes moved: vocab / 8 of each mask from host memory; 4 for each masked token.
// Numerics: exact.
// Preconditions: n <= max_rows; first + m <= n; the list refers only to masks that have been written.
// Origin: own.
struct GrammarMaskArgs {
  View<float, 2> logits;
  View<int32_t, 1> logit_row;
  const int32_t* entry = nullptr;
  const int32_t* ring = nullptr;
  int64_t max_rows = 0;
  int64_t first = 0;
};

WR_OP(grammar_mask, GrammarMaskArgs);

}  // namespace warprow
