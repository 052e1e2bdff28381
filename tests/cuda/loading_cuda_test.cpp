// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/quant/fill_quant.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "layers/parameter_loader.h"
#include "layers/quant_piece.h"
#include "layers/random_quant_matrix.h"
#include "tests/cuda/cuda_test.h"
#include "tests/layers/mixed_checkpoint.h"

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::MixedCheckpoint;

class LoadingCuda : public testing::CudaTest {
 protected:
  using CudaTest::download;
  std::vector<uint16_t> rows_of(const PackedWeight& weight) {
    return download(reinterpret_cast<const uint16_t*>(weight.data),
                    static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k));
  }
  std::vector<float> floats_of(const PackedWeight& weight) {
    return download(reinterpret_cast<const float*>(weight.data),
                    static_cast<size_t>(weight.n) * static_cast<size_t>(weight.k));
  }
  static TensorSpec spec(const std::string& name, RowOrder order = RowOrder::kPlain) {
    return {name, MixedCheckpoint::kRows, MixedCheckpoint::kCols, order, MixedCheckpoint::kHeadDim};
  }

  MixedCheckpoint mixed_;
};

TEST_F(LoadingCuda, EveryFormatInBothOrdersBecomesRowsOfBf16) {
  ASSERT_EQ(mixed_.matrices().size(), static_cast<size_t>(kNumValueTypes) + 1);
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
    std::vector<std::pair<std::string, PackedWeight>> placed;
    for (const std::string& name : mixed_.matrices()) {
      if (name != "large") {
        placed.emplace_back(name, loader.matrix(spec(name, order)));
      }
    }
    loader.finish();
    for (const auto& [name, weight] : placed) {
      EXPECT_EQ(weight.kind, PackedKind::kBF16);
      EXPECT_EQ(weight.n, MixedCheckpoint::kRows);
      EXPECT_EQ(rows_of(weight), mixed_.expected(name, order)) << name;
    }
  }
}

TEST_F(LoadingCuda, EveryFormatInBothOrdersBecomesRowsOfFloat32) {
  for (const RowOrder order : {RowOrder::kPlain, RowOrder::kRopePairs}) {
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena(), LoadFormat::kAuto, DType::kF32);
    std::vector<std::pair<std::string, PackedWeight>> placed;
    for (const std::string& name : mixed_.matrices()) {
      if (name != "large") {
        placed.emplace_back(name, loader.matrix(spec(name, order)));
      }
    }
    const std::vector<TensorSpec> parts{spec("F32", order), spec("BF16", order), spec("Q6_K")};
    const PackedWeight stacked = loader.stacked(parts);
    loader.finish();
    for (const auto& [name, weight] : placed) {
      EXPECT_EQ(weight.kind, PackedKind::kF32);
      EXPECT_EQ(floats_of(weight), mixed_.expected_f32(name, order)) << name;
    }
    std::vector<float> expected;
    for (const TensorSpec& part : parts) {
      const std::vector<float> rows = mixed_.expected_f32(part.name, part.order);
      expected.insert(expected.end(), rows.begin(), rows.end());
    }
    EXPECT_EQ(floats_of(stacked), expected);
  }
}

TEST_F(LoadingCuda, DummyWeightsOfFloat32AreThoseOfBf16) {
  const auto weights = [this](DType rows) {
    ParameterLoader loader(mixed_.checkpoint(), stream(), arena(), LoadFormat::kDummy, rows);
    const std::vector<TensorSpec> parts{{"a.weight", 33, 100}, {"b.weight", 7, 100}};
    const PackedWeight weight = loader.stacked(parts);
    loader.finish();
    return weight;
  };
  const PackedWeight exact = weights(DType::kF32);
  EXPECT_EQ(exact.kind, PackedKind::kF32);
  EXPECT_EQ(floats_of(exact), from_bf16(rows_of(weights(DType::kBF16))));
}

TEST_F(LoadingCuda, PartsOfOneLayerLieOneBelowTheOther) {
  ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
  const std::vector<TensorSpec> parts{
      spec("Q4_K", RowOrder::kRopePairs), spec("Q8_0", RowOrder::kRopePairs), spec("Q6_K")};
  const PackedWeight weight = loader.stacked(parts);
  const PackedWeight large =
      loader.matrix({"large", MixedCheckpoint::kLargeRows, MixedCheckpoint::kCols});
  const View<const float, 1> norm = loader.vector({"norm", 1, MixedCheckpoint::kCols});
  loader.finish();
  EXPECT_EQ(weight.n, 3 * MixedCheckpoint::kRows);
  std::vector<uint16_t> expected;
  for (const TensorSpec& part : parts) {
    const std::vector<uint16_t> rows = mixed_.expected(part.name, part.order);
    expected.insert(expected.end(), rows.begin(), rows.end());
  }
  EXPECT_EQ(rows_of(weight), expected);
  EXPECT_EQ(rows_of(large), mixed_.expected("large", RowOrder::kPlain));
  EXPECT_EQ(to_bf16(download(norm.data, MixedCheckpoint::kCols)),
            mixed_.expected("norm", RowOrder::kPlain));
}

TEST_F(LoadingCuda, AFormatMayKeepItsBytes) {
  WeightFormat kept = weight_format_of(TensorType::kQ8_0);
  kept.cuda = {Repack::kKept, kept.cpu.product};
  ParameterLoader loader(mixed_.checkpoint(), stream(), arena());
  TensorSpec spec{"Q8_0", MixedCheckpoint::kRows, MixedCheckpoint::kCols};
  spec.format = &kept;
  spec.shard = {ShardRule::Axis::kCols, 1, 2, 1};
  const PackedWeight weight = loader.matrix(spec);
  loader.finish();
  EXPECT_EQ(weight.kind, PackedKind::kQ8);
  EXPECT_EQ(weight.k, MixedCheckpoint::kCols / 2);
  const TensorSource& tensor = *mixed_.checkpoint().find("Q8_0");
  const size_t half = tensor.row_bytes / 2;
  const std::vector<std::byte> got =
      download(weight.data, half * static_cast<size_t>(MixedCheckpoint::kRows));
  for (size_t row = 0; row < static_cast<size_t>(MixedCheckpoint::kRows); ++row) {
    EXPECT_EQ(
        std::memcmp(got.data() + row * half, tensor.data + row * tensor.row_bytes + half, half), 0)
        << row;
  }
}

TEST_F(LoadingCuda, DummyWeightsAreTheSameOnBothDevicesAndReadNothing) {
  ParameterLoader loader(mixed_.checkpoint(), stream(), arena(), LoadFormat::kDummy);
  const PackedWeight weight = loader.matrix({"not.in.the.file.weight", 33, 100});
  const PackedWeight again = loader.matrix({"not.in.the.file.weight", 33, 100});
  const PackedWeight other = loader.matrix({"another.weight", 33, 100});
  const View<const float, 1> norm = loader.vector({"some.norm.weight", 1, 7});
  const View<const float, 1> bias = loader.vector({"some.bias", 1, 7});
  loader.finish();
  EXPECT_EQ(rows_of(weight), rows_of(again));
  EXPECT_NE(rows_of(weight), rows_of(other));
  EXPECT_EQ(download(norm.data, 7), std::vector<float>(7, 1.0F));
  EXPECT_EQ(download(bias.data, 7), std::vector<float>(7, 0.0F));
  double squares = 0.0;
  for (const float v : from_bf16(rows_of(weight))) {
    squares += static_cast<double>(v) * static_cast<double>(v);
  }
  EXPECT_NEAR(std::sqrt(squares / 3300), 2.0 / 10.0, 0.01);
}

// A part of a random quantised matrix, filled here, has the bits that a CPU gives it.
TEST_F(LoadingCuda, RandomQuantisedWeightsAreThoseOfACpu) {
  struct Case {
    PackedKind kind;
    QuantNumber number;
    int32_t group;
    F8Inputs inputs;
    ScaleForm scales = ScaleForm::kF16;
  };
  constexpr int64_t kRows = 144;
  constexpr int64_t kCols = 1000;  // of the part; tiles end within a group
  const std::vector<Case> cases{
      {PackedKind::kF8F8, QuantNumber::kF8, 128, F8Inputs::kRow},
      {PackedKind::kF8F8, QuantNumber::kF8, 128, F8Inputs::kGroup},
      {PackedKind::kF8, QuantNumber::kF8, 128, F8Inputs::kRow},
      {PackedKind::kF8, QuantNumber::kF8, 128, F8Inputs::kGroup},
      {PackedKind::kQ8, QuantNumber::kQ8, 128, F8Inputs::kNone},
      {PackedKind::kQ8, QuantNumber::kQ8, 32, F8Inputs::kNone},
      {PackedKind::kQ4, QuantNumber::kQ4, 128, F8Inputs::kNone},
      {PackedKind::kQ4, QuantNumber::kQ4, 64, F8Inputs::kNone},
      {PackedKind::kQ8, QuantNumber::kQ8, 128, F8Inputs::kNone, ScaleForm::kBF16},
      {PackedKind::kQ4, QuantNumber::kQ4, 32, F8Inputs::kNone, ScaleForm::kBF16},
      {PackedKind::kBF16, QuantNumber::kF8, 128, F8Inputs::kRow},
      {PackedKind::kBF16, QuantNumber::kQ4, 32, F8Inputs::kNone},
      {PackedKind::kF32, QuantNumber::kQ8, 64, F8Inputs::kNone},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(::testing::Message()
                 << "kind " << static_cast<int>(c.kind) << ", group " << c.group << ", inputs "
                 << static_cast<int>(c.inputs) << ", scales " << static_cast<int>(c.scales));
    QuantForm form;
    form.number = c.number;
    form.group = c.group;
    form.inputs = c.inputs;
    const RandomQuantMatrix matrix(form, 0x123456789abcdefULL, 0.04F, 400, 2048);
    const QuantPart part{48, kRows, 256, kCols};
    PackedWeight weight;
    weight.kind = c.kind;
    weight.group = c.group;
    weight.inputs = c.kind == PackedKind::kF8F8 ? c.inputs : F8Inputs::kNone;
    weight.zero_point = matrix.form().zero_point;
    weight.scales = c.scales;
    weight.n = kRows;
    weight.k = kCols;
    const bool rows = c.kind == PackedKind::kBF16 || c.kind == PackedKind::kF32;
    const Repack repack = !rows                         ? Repack::kQuantTiles
                          : c.kind == PackedKind::kBF16 ? Repack::kBf16Rows
                                                        : Repack::kF32Rows;
    const size_t row_bytes = c.kind == PackedKind::kBF16 ? 2 * kCols : 4 * kCols;
    const size_t bytes = rows ? kRows * row_bytes : quant_tiles_bytes(weight);
    std::vector<std::byte> want(bytes);
    make_quant_piece(matrix, part, repack, weight, 0, kRows, want.data());
    auto* got = poisoned<std::byte>(bytes);
    cuda::fill_quant(stream(), {matrix.random(), part.row, part.col, weight, got});
    EXPECT_EQ(download(got, bytes), want);
  }
}

}  // namespace
}  // namespace warprow
