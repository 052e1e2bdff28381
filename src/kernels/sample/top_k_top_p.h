// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample_loops.h"

#include <cstdint>

namespace warprow::cpu {

// A row's values with what searches in it need, and the worker's scratch for them.
struct TokenRow {
  const float* x;  // [n]
  int32_t n;
  float max;               // of x; finite
  const float* group_max;  // scan_row's
  const SampleLoops* loops;
  TokenKey* keys;     // scratch [n]
  float* values;      // scratch [n]
  float* group_copy;  // scratch [num_max_groups(n)]
};

// Lists up to this length are handled token by token, longer ones by passes over the row.
constexpr int32_t kShortList = 512;

// Puts the keys of the k tokens that come first (largest value, then lowest id) among those with x
// >= lower into row.keys, in no order; fewer if there are fewer. Returns their number.
int32_t select_top_k(const TokenRow& row, int32_t k, float lower);

// Of row.keys[0, count) the first tokens (largest value, then lowest id) survive whose softmax
// weights, over those count tokens, reach p; at least one. Returns the last survivor's key: all
// smaller keys survive too. Reorders the keys, and of a list longer than kShortList destroys them.
TokenKey last_of_top_p(const TokenRow& row, int32_t count, float p);

// The tokens of a row that top-p leaves.
struct TopPSurvivors {
  int32_t count;  // row.keys[0, count) holds them, among others, if count <= kShortList
  TokenKey last;
};
// The same over all tokens with x >= lower, without listing them all.
TopPSurvivors top_p_of_row(const TokenRow& row, float lower, float p);

}  // namespace warprow::cpu
