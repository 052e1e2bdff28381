// SPDX-License-Identifier: Apache-2.0
#include "layers/pack_tensor.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Two heads of six: the interleaved pairs (0,3) (1,4) (2,5) become halves again.
TEST(RopePairRow, PutsTheHalvesBack) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) {
    rows.push_back(rope_pair_row(row, 6));
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
}

}  // namespace
}  // namespace warprow
