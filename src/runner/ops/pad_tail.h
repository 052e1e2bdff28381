// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// Tokens from num_toks up to the padded count: id 0, position 0, PAD slot in every group, so that a
// padded step writes no cache cell and reads no foreign token. One item per padding token.
struct PadTail {
  int32_t num_toks = 0;
  int32_t num_groups = 0;
  int64_t slots_stride = 0;
  int32_t* input_ids = nullptr;  // dev i32 [max_num_batched_tokens]
  int32_t* positions = nullptr;  // dev i32 [max_num_batched_tokens]
  int64_t* slots = nullptr;      // dev i64 [groups, slots_stride]

  WR_HD void operator()(int64_t i) const {
    const int64_t tok = num_toks + i;
    input_ids[tok] = 0;
    positions[tok] = 0;
    for (int32_t group = 0; group < num_groups; ++group) {
      slots[group * slots_stride + tok] = -1;
    }
  }
};

}  // namespace warprow
