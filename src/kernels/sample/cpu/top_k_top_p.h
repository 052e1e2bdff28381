// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/cpu/sample_loops.h"

#include <bit>
#include <cstdint>

namespace warprow::cpu {

// Unpack the keys of collect_at_least.
inline int32_t key_id(TokenKey key) { return static_cast<int32_t>(key); }
inline float key_value(TokenKey key) {
  const auto ascending = ~static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>((ascending & 0x80000000U) != 0 ? ascending & 0x7fffffffU
                                                             : ~ascending);
}

// A row's values and what searches in it need, and the worker's scratch for them.
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

// Lists up to this length are processed token by token, longer ones by passes over the row.
constexpr int32_t kShortList = 512;

// Selects the first k tokens (largest value, then lowest id) among those with x >= lower, and puts their keys
// into row.keys in no order. There may be fewer. Returns their number.
int32_t select_top_k(const TokenRow& row, int32_t k, float lower);

// Top-p over row.keys[0, count): the first tokens (largest value, then lowest id) whose softmax weights, over
// those count tokens, sum to at least p survive; at least one does. Returns the last survivor's key; all
// smaller keys survive too. Reorders the keys; destroys those of a list longer than kShortList.
TokenKey last_of_top_p(const TokenRow& row, int32_t count, float p);

// The survivors of top-p in a row.
struct TopPSurvivors {
  int32_t count;  // if count <= kShortList, row.keys[0, count) contains them, among others
  TokenKey last;
};
// The same over all tokens with x >= lower, without a list of all of them.
TopPSurvivors top_p_of_row(const TokenRow& row, float lower, float p);

}  // namespace warprow::cpu
