// SPDX-License-Identifier: Apache-2.0
#include "layers/tensor_spec.h"

#include "layers/weight_format.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TensorSpec rows_over(int32_t rank, int32_t world, int64_t unit = 1) {
  TensorSpec spec{"m.weight", 576, 1536};
  spec.shard = {ShardRule::Axis::kRows, rank, world, unit};
  return spec;
}
TensorSpec cols_over(int32_t rank, int32_t world) {
  TensorSpec spec{"m.weight", 576, 1536};
  spec.shard = {ShardRule::Axis::kCols, rank, world, 1};
  return spec;
}

void expect_range(const Result<IndexRange>& range, int64_t begin, int64_t count) {
  ASSERT_TRUE(range) << range.error().message;
  EXPECT_EQ(range->begin, begin);
  EXPECT_EQ(range->count, count);
}

TEST(TensorSpec, ARankHoldsAnEqualPartOfRowsOrColumns) {
  expect_range(shard_rows(rows_over(0, 3), {}), 0, 192);
  expect_range(shard_rows(rows_over(2, 3), {}), 384, 192);
  expect_range(shard_cols(rows_over(2, 3), {}), 0, 1536);
  expect_range(shard_cols(cols_over(1, 4), {}), 384, 384);
  expect_range(shard_cols(cols_over(1, 3), {1, 256}), 512, 512);
  expect_range(shard_rows(cols_over(1, 4), {}), 0, 576);
  expect_range(shard_rows(rows_over(0, 1), {128, 128}), 0, 576);  // not split, so no alignment
}

TEST(TensorSpec, AnImpossibleSplitSaysWhy) {
  // 9 heads of 64 rows over 2 ranks: 4.5 heads each.
  const auto heads = shard_rows(rows_over(0, 2, 64), {});
  ASSERT_FALSE(heads);
  EXPECT_EQ(heads.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(heads.error().message,
            "tensor m.weight cannot be split over 2 ranks: 576 rows are not 2 parts in multiples "
            "of 64");
  expect_range(shard_rows(rows_over(1, 3, 64), {}), 192, 192);
  // Super-blocks of 256: 1536 columns are six of them.
  const auto blocks = shard_cols(cols_over(0, 4), {1, 256});
  ASSERT_FALSE(blocks);
  EXPECT_THAT(blocks.error().message,
              AllOf(HasSubstr("m.weight"),
                    HasSubstr("4 ranks"),
                    HasSubstr("1536 columns"),
                    HasSubstr("256")));
  // Rope's halves are adjacent within a head, so heads are never split.
  TensorSpec pairs = rows_over(0, 2);
  pairs.order = RowOrder::kRopePairs;
  pairs.head_dim = 64;
  EXPECT_FALSE(shard_rows(pairs, {}));
}

TEST(TensorSpec, ABiasIsCutAsItsWeightsRows) {
  TensorSpec weight = rows_over(1, 3, 32);
  weight.order = RowOrder::kRopePairs;
  weight.head_dim = 64;
  weight.slice = {2000, 1536, 100, 0};
  const TensorSpec bias = bias_spec(weight, "m.bias");
  EXPECT_EQ(bias.name, "m.bias");
  EXPECT_EQ(bias.rows, 1);
  EXPECT_EQ(bias.cols, 576);
  EXPECT_EQ(bias.slice.tensor_cols, 2000);
  EXPECT_EQ(bias.slice.first_col, 100);
  EXPECT_EQ(bias.shard.unit, 64);
  expect_range(shard_cols(bias, {}), 192, 192);
  // A split along the inputs does not split the bias.
  expect_range(shard_cols(bias_spec(cols_over(1, 3), "m.bias"), {}), 0, 576);
}

// Values with one scale for each tile of 128 x 128.
class RankRegion : public ::testing::Test {
 protected:
  RankRegion() {
    format_.name = "blocks";
    format_.sources = {{"", TensorType::kF8E4M3}, {"weight_scale_inv", TensorType::kF32, 128, 128}};
    format_.alignment = {128, 128};
    values_ = source("m.weight", TensorType::kF8E4M3, 576, 1536);
    scales_ = source("m.weight_scale_inv", TensorType::kF32, 5, 12);
  }
  static TensorSource source(const std::string& name, TensorType type, int64_t rows, int64_t cols) {
    TensorSource tensor;
    tensor.name = name;
    tensor.type = type;
    tensor.rows = rows;
    tensor.cols = cols;
    tensor.row_bytes = tensor_row_bytes(type, cols);
    tensor.bytes = static_cast<size_t>(rows) * tensor.row_bytes;
    return tensor;
  }

  WeightFormat format_;
  TensorSource values_;
  TensorSource scales_;
};

TEST_F(RankRegion, FollowsEachSourcesGroups) {
  const TensorSpec spec = cols_over(2, 3);  // columns [1024, 1536)
  const auto values = rank_region(spec, format_, format_.sources[0], values_);
  ASSERT_TRUE(values) << values.error().message;
  EXPECT_EQ(values->rows(), 576);
  EXPECT_EQ(values->cols(), 512);
  EXPECT_EQ(values->file_offset(1), 1536U + 1024U);
  EXPECT_FALSE(values->contiguous());
  const auto scales = rank_region(spec, format_, format_.sources[1], scales_);
  ASSERT_TRUE(scales) << scales.error().message;
  EXPECT_EQ(scales->rows(), 5);  // 4.5 blocks
  EXPECT_EQ(scales->cols(), 4);
  EXPECT_EQ(scales->file_offset(1), (12U + 8U) * 4U);
  EXPECT_FALSE(rank_region(rows_over(0, 2), format_, format_.sources[0], values_));
}

TEST_F(RankRegion, ASliceLiesBetweenGroups) {
  TensorSpec spec{"m.weight", 64, 1536};
  spec.slice = {576, 1536, 512, 0};  // the last rows, half a block
  const auto scales = rank_region(spec, format_, format_.sources[1], scales_);
  ASSERT_TRUE(scales) << scales.error().message;
  EXPECT_EQ(scales->rows(), 1);
  EXPECT_EQ(scales->file_offset(0), 4U * 12U * 4U);
  spec.slice.first_row = 64;
  const auto cut = rank_region(spec, format_, format_.sources[1], scales_);
  ASSERT_FALSE(cut);
  EXPECT_EQ(cut.error().message,
            "tensor m.weight_scale_inv: rows [64, 128) of 576 cut through its groups of 128");
}

TEST_F(RankRegion, ATensorOfAnotherShapeIsRefused) {
  scales_ = source("m.weight_scale_inv", TensorType::kF32, 4, 12);
  const auto region = rank_region(cols_over(0, 1), format_, format_.sources[1], scales_);
  ASSERT_FALSE(region);
  EXPECT_EQ(region.error().code, ErrorCode::kCorrupt);
  EXPECT_EQ(region.error().message,
            "tensor m.weight_scale_inv is [4, 12], the model's config wants [5, 12]");
}

}  // namespace
}  // namespace warprow
