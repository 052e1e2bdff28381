// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/native/params.h"

#include <array>

#include <gtest/gtest.h>

namespace warprow::cuda {
namespace {

// The memory for the attention schedule, which is computed once per step, depends only on the number of batch rows. Its
// size is thus known when memory is planned, and is the same for all lengths that a graph replays. (FlashAttention's
// schedule has 1 + 4 x round_up(rows, 4) ints.) Here: 8 KV heads, 4 query heads per KV head, head size 128.
TEST(NativeScratch, TheScheduleOfOneFiveAnd256Rows) {
  struct Case {
    int32_t rows;
    size_t counts, arrivals, prefill_tiles, prompt_arrivals, partials, bytes;
  };
  constexpr std::array<Case, 3> kCases = {{
      // 44 bytes for each of rows + 5120 work items, four ints per row and KV head, rows + 1 ints, 640 ints, and 640 partial
      // results of prompts, of 17,408 floats. Each array is aligned to 256 bytes.
      {1, 225536, 225792, 226048, 226304, 228864, 44793344},
      {5, 225536, 225792, 226560, 226816, 229376, 44793856},
      {256, 236544, 236800, 269568, 270848, 273408, 44837888},
  }};
  for (const Case& c : kCases) {
    const ScratchLayout layout = native_scratch_layout(8, 4, 128, c.rows, 1);
    EXPECT_EQ(layout.counts, c.counts) << c.rows;
    EXPECT_EQ(layout.arrivals, c.arrivals) << c.rows;
    EXPECT_EQ(layout.prefill_tiles, c.prefill_tiles) << c.rows;
    EXPECT_EQ(layout.prompt_arrivals, c.prompt_arrivals) << c.rows;
    EXPECT_EQ(layout.partials, c.partials) << c.rows;
    EXPECT_EQ(layout.bytes, c.bytes) << c.rows;
  }
}

}  // namespace
}  // namespace warprow::cuda
