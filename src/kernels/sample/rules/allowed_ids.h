// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/token_lists.h"

#include <algorithm>
#include <cstdint>
#include <limits>

namespace warprow::cpu {

// Copies the logits [vocab] of the allowed tokens and sets all others to -inf. Without a list it copies all
// logits. Biases are added later, so they cannot bring back a token.
inline void copy_allowed(const TokenListsView& lists, const float* from, float* to, int32_t vocab) {
  if (lists.num_allowed == 0) {
    std::copy_n(from, vocab, to);
    return;
  }
  std::fill_n(to, vocab, -std::numeric_limits<float>::infinity());
  for (int32_t i = 0; i < lists.num_allowed; ++i) {
    const int32_t id = lists.allowed[i];
    if (id >= 0 && id < vocab) {
      to[id] = from[id];
    }
  }
}

}  // namespace warprow::cpu
