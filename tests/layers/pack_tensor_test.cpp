// SPDX-License-Identifier: Apache-2.0
#include "layers/pack_tensor.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Two heads of six: interleaved pairs (0,3) (1,4) (2,5) go back to halves.
TEST(RopePairRow, PutsTheHalvesBack) {
  std::vector<int64_t> rows;
  for (int64_t row = 0; row < 12; ++row) {
    rows.push_back(rope_pair_row(row, 6));
  }
  EXPECT_EQ(rows, (std::vector<int64_t>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11}));
}

TEST(PackedShape, FollowsTheFormat) {
  TensorSource tensor;
  tensor.rows = 40;
  tensor.cols = 64;
  tensor.format = WeightFormat::kQ4_0;
  PackedWeight weight = packed_shape(tensor);
  EXPECT_EQ(weight.kind, PackedKind::kQ4);
  EXPECT_EQ(weight.zero_point, 8);
  EXPECT_FALSE(weight.has_bias);
  EXPECT_EQ(weight.scales, ScaleForm::kF16);
  tensor.format = WeightFormat::kQ6_K;
  weight = packed_shape(tensor);
  EXPECT_EQ(weight.kind, PackedKind::kQ6);
  EXPECT_EQ(weight.group, 16);
  EXPECT_EQ(weight.scales, ScaleForm::kSplit);
  tensor.format = WeightFormat::kBF16;
  EXPECT_EQ(packed_shape(tensor).kind, PackedKind::kBF16);
  EXPECT_EQ(packed_shape(tensor).n, 40);
  EXPECT_EQ(packed_shape(tensor).k, 64);
}

}  // namespace
}  // namespace warprow
