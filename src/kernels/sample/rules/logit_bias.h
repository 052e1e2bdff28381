// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/token_lists.h"

#include <bit>
#include <cstdint>

namespace warprow::cpu {

// Adds each bias to its token's logit; -inf stays -inf.
inline void add_logit_biases(const TokenListsView& lists, float* logits, int32_t vocab) {
  for (int32_t i = 0; i < lists.num_biases; ++i) {
    const int32_t* pair = lists.biases + 2 * static_cast<int64_t>(i);
    if (pair[0] >= 0 && pair[0] < vocab) {
      logits[pair[0]] += std::bit_cast<float>(pair[1]);
    }
  }
}

}  // namespace warprow::cpu
