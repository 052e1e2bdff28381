// SPDX-License-Identifier: Apache-2.0
// GGUF's types on Hopper: loaded as tiles, their weights and products have the bits of the same tensor as rows of bf16.
#include "kernels/linear/linear.h"
#include "kernels/linear/quant/dequantise_tiles.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "layers/parameter_loader.h"
#include "tests/cuda/cuda_test.h"
#include "tests/layers/mixed_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::MixedCheckpoint;

class GroupTilesCuda : public testing::CudaTest {
 protected:
  static constexpr int64_t kRows = MixedCheckpoint::kRows;
  static constexpr int64_t kCols = MixedCheckpoint::kCols;
  static constexpr int32_t kMostTokens = 200;

  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "tiles of GGUF's types need a GPU of compute capability 9.0";
    }
  }
  using CudaTest::download;

  static TensorSpec spec(const std::string& name, RowOrder order = RowOrder::kPlain) {
    TensorSpec out{name, kRows, kCols, order, MixedCheckpoint::kHeadDim};
    out.of_linear = true;
    return out;
  }
  std::vector<std::string> quantised() const {
    std::vector<std::string> names;
    for (const std::string& name : mixed_.matrices()) {
      if (is_quantised(mixed_.checkpoint().find(name)->type)) {
        names.push_back(name);
      }
    }
    return names;
  }
  std::vector<uint16_t> rows_of(const PackedWeight& weight) {
    const auto count = static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k);
    auto* rows = poisoned<uint16_t>(count);
    cuda::dequantise_tiles(stream(), {weight, 0, weight.n, rows});
    return test::with_plain_zeros(download(rows, count));
  }

  std::vector<std::byte> product(const PackedWeight& weight,
                                 const ActView& x,
                                 int32_t tokens,
                                 const uint16_t* bf16_rows) {
    const ActView y = poisoned_act(DType::kF32, tokens, weight.n);
    cuda::Sm90GemmArgs args;
    args.w = bf16_rows != nullptr ? static_cast<const void*>(bf16_rows) : weight.data;
    args.x = x.data;
    args.x_stride = weight.k;
    args.y = y.data;
    args.y_stride = weight.n;
    args.y_f32 = true;
    args.m = tokens;
    args.n = weight.n;
    args.k = weight.k;
    const int32_t sms = gpu().facts().num_sms;
    if (bf16_rows == nullptr) {
      sm90_quant_gemm(stream(), args, weight, cuda::sm90_quant_plan(weight, tokens, sms));
    } else {
      const int32_t parts = cuda::sm90_quant_parts(weight.kind, weight.n, weight.k);
      sm90_bf16_gemm_small_m(
          stream(), args, cuda::sm90_gemm_plan(tokens, weight.n, weight.k, sms, parts));
    }
    return download(static_cast<const std::byte*>(y.data),
                    static_cast<size_t>(tokens * weight.n) * 4);
  }

  static bool is_table(const PackedWeight& weight) { return weight.kind == PackedKind::kTable; }
  static ScaleForm scales_of(const PackedWeight& weight) {
    return is_table(weight) ? ScaleForm::kF32 : ScaleForm::kBF16;
  }

  MixedCheckpoint mixed_;
};

TEST_F(GroupTilesCuda, EveryTypeInBothOrdersKeepsItsValues) {
  ASSERT_EQ(quantised().size(), 20U);
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
    std::vector<std::pair<std::string, PackedWeight>> placed;
    for (const std::string& name : quantised()) {
      placed.emplace_back(name, loader.matrix(spec(name, order)));
    }
    loader.finish();
    for (const auto& [name, weight] : placed) {
      EXPECT_EQ(weight.scales, scales_of(weight)) << name;
      EXPECT_EQ(rows_of(weight), mixed_.expected_tiles(name, order, is_table(weight))) << name;
    }
  }
}

TEST_F(GroupTilesCuda, ProductsHaveTheBitsOfBf16Rows) {
  const ActView x =
      upload_act(testing::normals(static_cast<size_t>(kMostTokens * kCols), 5), kMostTokens, kCols);
  for (const std::string& name : quantised()) {
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
    const PackedWeight weight = loader.matrix(spec(name));
    loader.finish();
    const uint16_t* rows = upload(mixed_.expected_tiles(name, RowOrder::kPlain, is_table(weight)));
    const std::vector<std::byte> all = product(weight, x, kMostTokens, nullptr);
    const size_t row_bytes = all.size() / static_cast<size_t>(kMostTokens);
    for (const int32_t tokens : {1, 8, 9, 32, 33, 64, 65, 128, 129, kMostTokens}) {
      const std::vector<std::byte> got = product(weight, x, tokens, nullptr);
      EXPECT_TRUE(got == product(weight, x, tokens, rows)) << name << ", " << tokens << " rows";
      EXPECT_TRUE(std::equal(got.begin(), got.end(), all.begin()))
          << name << ": a row among " << tokens << " and " << kMostTokens;
      ASSERT_EQ(got.size(), row_bytes * static_cast<size_t>(tokens));
    }
  }
}

// Types that differ share tiles that hold all of them. A type without tiles makes rows of all.
TEST_F(GroupTilesCuda, PartsOfOneLayerOfSeveralTypes) {
  for (const bool tiles : {true, false}) {
    std::vector<TensorSpec> parts{
        spec("Q4_K", RowOrder::kRopePairs), spec("Q4_K"), spec("Q6_K"), spec("Q8_0"), spec("Q4_0")};
    if (!tiles) {
      parts.push_back(spec("BF16"));
    }
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
    ASSERT_TRUE(loader.stacks(parts));
    const PackedWeight weight = loader.stacked(parts);
    loader.finish();
    EXPECT_EQ(weight.kind, tiles ? PackedKind::kQ8 : PackedKind::kBF16);
    std::vector<uint16_t> expected;
    for (const TensorSpec& part : parts) {
      const std::vector<uint16_t> rows = tiles ? mixed_.expected_tiles(part.name, part.order, false)
                                               : mixed_.expected(part.name, part.order);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    const std::vector<uint16_t> got =
        tiles ? rows_of(weight)
              : download(reinterpret_cast<const uint16_t*>(weight.data), expected.size());
    EXPECT_EQ(got, expected);
  }
}

// A rank's columns, and its rows.
TEST_F(GroupTilesCuda, ARankHasItsPart) {
  for (const std::string& name : quantised()) {
    for (const ShardRule::Axis axis : {ShardRule::Axis::kRows, ShardRule::Axis::kCols}) {
      TensorSpec part = spec(name);
      part.shard = {axis, 1, 2, 1};
      ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
      const PackedWeight weight = loader.matrix(part);
      loader.finish();
      EXPECT_EQ(weight.scales, scales_of(weight)) << name;
      const std::vector<uint16_t> whole =
          mixed_.expected_tiles(name, RowOrder::kPlain, is_table(weight));
      std::vector<uint16_t> expected;
      const bool by_rows = axis == ShardRule::Axis::kRows;
      for (int64_t row = by_rows ? kRows / 2 : 0; row < kRows; ++row) {
        const auto first = whole.begin() + row * kCols + (by_rows ? 0 : kCols / 2);
        expected.insert(expected.end(), first, whole.begin() + (row + 1) * kCols);
      }
      EXPECT_EQ(rows_of(weight), expected) << name;
    }
  }
}

}  // namespace
}  // namespace warprow
