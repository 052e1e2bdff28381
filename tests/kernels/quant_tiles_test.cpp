// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/quant/quant_tiles.h"

#include "base/dtype.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(QuantTiles, AWeightIsItsValueInBf16) {
  std::mt19937 random(1);
  std::uniform_real_distribution<float> scales(1e-4F, 2.0F);
  int32_t differ = 0;
  constexpr int32_t kCount = 100000;
  for (int32_t i = 0; i < kCount; ++i) {
    const float scale = scales(random);
    const auto number = static_cast<float>(static_cast<int32_t>(random() % 511) - 255);
    const int32_t got = quant_weight(number, scale);
    const int32_t nearest =
        f32_to_bf16(static_cast<float>(static_cast<double>(number) * static_cast<double>(scale)));
    ASSERT_LE(std::abs(got - nearest), 1) << number << " * " << scale;
    differ += got != nearest ? 1 : 0;
  }
  EXPECT_LT(differ, kCount / 200);
  // A scale that is a bf16, as most are, leaves one rounding.
  EXPECT_EQ(quant_weight(7.0F, 0.5F), f32_to_bf16(3.5F));
  EXPECT_EQ(quant_weight(-255.0F, 1.0078125F), f32_to_bf16(-255.0F * 1.0078125F));
}

// Row 9, input 5 of a tile, in the middle of everything.
TEST(QuantTiles, ANumberLiesWhereItsLaneLooks) {
  for (const PackedKind kind : {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ8}) {
    PackedWeight weight;
    weight.kind = kind;
    weight.n = 16;
    weight.k = 128;
    weight.group = kind == PackedKind::kQ4 ? 64 : 128;
    weight.has_zero_points = kind == PackedKind::kQ4;
    std::vector<uint8_t> numbers(16 * 128);
    numbers[9 * 128 + 5] = 0xb;
    std::vector<float> group_scales(16 * 2, 1.0F);
    group_scales[9 * (128 / static_cast<size_t>(weight.group))] = 0.75F;
    std::vector<uint8_t> zeros(16 * 2);
    zeros[9 * 2] = 3;
    std::vector<std::byte> tile(quant_tiles_bytes(weight));
    pack_quant_tiles(weight, 16, {numbers.data(), group_scales.data(), zeros.data()}, tile);
    // Lane 1 * 4 + 2 has rows 1 and 9, and inputs 4, 5, 12 and 13.
    const size_t lane = 6;
    if (kind == PackedKind::kQ4) {
      uint32_t word = 0;
      std::memcpy(&word, tile.data() + lane * 16, sizeof(word));
      EXPECT_EQ(word, 0xbU << 20);  // nibble 5: one input further, the lower row
    } else {
      // Byte 2: the lower row, one input further.
      uint32_t word = 0;
      std::memcpy(&word, tile.data() + lane * 16, sizeof(word));
      EXPECT_EQ(word, kind == PackedKind::kF8 ? quant_f8_word(0xb0000) : 0xb0000U);
    }
    uint32_t scale = 0;
    const auto bytes = static_cast<size_t>(quant_number_bytes(kind));
    std::memcpy(&scale, tile.data() + bytes + 9 * sizeof(scale), sizeof(scale));
    EXPECT_EQ(scale, quant_scale_word(kind, 9, 0.75F));
    if (weight.has_zero_points) {
      EXPECT_EQ(static_cast<int>(tile[bytes + 2 * 16 * 4 + 9]), 3);
    }
  }
}

// What kernels do with the word: one row is masked, the other takes a rotation and a shift. Both have sign, exponent and fraction
// where a bf16 has them.
TEST(QuantTiles, AWordOfF8IsReadInFewSteps) {
  const auto as_bf16 = [](uint32_t number) {
    return (number & 0x80U) << 8 | (number & 0x7fU) << 4;
  };
  for (uint32_t number = 0; number < 256; ++number) {
    const uint32_t bytes[4] = {number, number ^ 0x5aU, number ^ 0xffU, number ^ 0x81U};
    const uint32_t word = quant_f8_word(bytes[0] | bytes[1] << 8 | bytes[2] << 16 | bytes[3] << 24);
    EXPECT_EQ(word & 0x87f087f0U, as_bf16(bytes[1]) | as_bf16(bytes[3]) << 16);
    EXPECT_EQ((std::rotr(word, 4) & 0x87808780U) | (word << 4 & 0x00700070U),
              as_bf16(bytes[0]) | as_bf16(bytes[2]) << 16);
  }
}

// Tiles of more than 2,048 bytes are two equal pieces of multiples of 16 bytes.
TEST(QuantTiles, PiecesOfATileFitATensorMap) {
  for (const PackedKind kind :
       {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ6, PackedKind::kQ8}) {
    for (const int32_t group : {32, 64, 128}) {
      for (const ScaleForm scales : {ScaleForm::kF16, ScaleForm::kBF16}) {
        for (const bool zeros : {false, true}) {
          PackedWeight weight;
          weight.kind = kind;
          weight.group = group;
          weight.scales = scales;
          weight.has_zero_points = zeros;
          const int32_t bytes = quant_tile_bytes(weight);
          const int32_t pieces = quant_tile_pieces(bytes);
          EXPECT_EQ(bytes % (16 * pieces), 0) << bytes;
          EXPECT_LE(bytes / pieces, 2048) << bytes;
        }
      }
    }
  }
}

// A nibble of the lower eight rows is read 16 times too large.
TEST(QuantTiles, ABf16ScaleTakesTwoBytes) {
  PackedWeight weight;
  weight.kind = PackedKind::kQ4;
  weight.scales = ScaleForm::kBF16;
  weight.group = 32;
  weight.n = 16;
  weight.k = 128;
  const std::vector<uint8_t> numbers(16 * 128);
  std::vector<float> group_scales(16 * 4, 1.0F);
  group_scales[3 * 4 + 2] = 1.5F;
  group_scales[9 * 4 + 2] = -1.5F;
  std::vector<std::byte> tile(quant_tiles_bytes(weight));
  EXPECT_EQ(tile.size(), 1024U + 4 * 16 * 2);
  pack_quant_tiles(weight, 16, {numbers.data(), group_scales.data()}, tile);
  const auto scale_of = [&](size_t row) {
    uint16_t scale = 0;
    std::memcpy(&scale, tile.data() + 1024 + (2 * 16 + row) * 2, sizeof(scale));
    return bf16_to_f32(scale);
  };
  EXPECT_EQ(scale_of(3), 0x1.8p85F);
  EXPECT_EQ(scale_of(9), -0x1.8p81F);
}

TEST(QuantTiles, ABf16ScaleLiesBeforeItsBias) {
  PackedWeight weight;
  weight.kind = PackedKind::kQ8;
  weight.scales = ScaleForm::kBF16;
  weight.has_bias = true;
  weight.group = 16;
  weight.n = 16;
  weight.k = 128;
  const std::vector<uint8_t> numbers(16 * 128);
  std::vector<float> group_scales(16 * 8, 1.0F);
  std::vector<float> biases(16 * 8, -0.0F);
  group_scales[9 * 8 + 3] = 0x1.22p-20F;
  biases[9 * 8 + 3] = -1232.0F;
  std::vector<std::byte> tile(quant_tiles_bytes(weight));
  EXPECT_EQ(tile.size(), 2048U + 8 * 16 * 4);
  pack_quant_tiles(weight, 16, {numbers.data(), group_scales.data(), nullptr, biases.data()}, tile);
  uint16_t both[2] = {};
  std::memcpy(both, tile.data() + 2048 + (3 * 16 + 9) * 4, sizeof(both));
  EXPECT_EQ(bf16_to_f32(both[0]), 0x1.22p65F);
  EXPECT_EQ(bf16_to_f32(both[1]), -1232.0F * 0x1p-48F);
}

// Three words for 32 inputs; the fourth's numbers are in their upper bits.
TEST(QuantTiles, SixBitsLieInThreeWords) {
  PackedWeight weight;
  weight.kind = PackedKind::kQ6;
  weight.scales = ScaleForm::kBF16;
  weight.group = 16;
  weight.n = 16;
  weight.k = 128;
  std::vector<uint8_t> numbers(16 * 128);
  numbers[9 * 128 + 32 + 16 + 5] = 0x2a;      // lane 6, second 32 inputs, third word, byte 2
  numbers[1 * 128 + 32 + 16 + 8 + 4] = 0x1b;  // the same lane's fourth word, byte 1
  const std::vector<float> group_scales(16 * 8, 1.0F);
  std::vector<std::byte> tile(quant_tiles_bytes(weight));
  EXPECT_EQ(tile.size(), 1536U + 8 * 16 * 2);
  pack_quant_tiles(weight, 16, {numbers.data(), group_scales.data()}, tile);
  const auto word_at = [&](size_t i) {
    uint32_t word = 0;
    std::memcpy(&word, tile.data() + i / 4 * 512 + 6 * 16 + i % 4 * 4, sizeof(word));
    return word;
  };
  EXPECT_EQ(word_at(3), 0x3U << 14);
  EXPECT_EQ(word_at(4), 0x2U << 14);
  EXPECT_EQ(word_at(5), 0x2aU << 16 | 0x1U << 14);
}

TEST(QuantTiles, AWeightWithABiasIsRoundedOnce) {
  // 3 * 0.3359375 - 1 = 0.0078125 has one bit; the product alone would lose it in bf16.
  EXPECT_EQ(quant_weight(3.0F, 0.3359375F, -1.0F), f32_to_bf16(0.0078125F));
  EXPECT_EQ(quant_weight(5.0F, 0x1.02p-6F, -0.0F), f32_to_bf16(5 * 0x1.02p-6F));
}

TEST(QuantPlan, FitsSharedMemoryForEveryShape) {
  constexpr int32_t kSms = 132;
  for (const PackedKind kind : {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ8}) {
    for (const int32_t n : {16, 96, 1024, 4096, 6144, 24576}) {
      for (const int32_t k : {64, 520, 4096, 12288}) {
        PackedWeight weight;
        weight.kind = kind;
        weight.group = kind == PackedKind::kF8 ? 128 : 32;
        weight.has_zero_points = kind != PackedKind::kF8;
        weight.n = n;
        weight.k = k;
        for (const int32_t rows : {1, 8, 9, 32, 33, 64, 65, 128, 129, 500, 2047}) {
          const cuda::Sm90QuantPlan plan = cuda::sm90_quant_plan(weight, rows, kSms);
          EXPECT_LE(cuda::sm90_quant_shared_bytes(plan, weight), size_t{225} * 1024)
              << n << " " << k;
          EXPECT_EQ(plan.split, cuda::sm90_quant_parts(kind, n, k))
              << "depends on the matrix alone";
          EXPECT_GE(plan.stages, 2);
          if (kind == PackedKind::kQ8) {  // the widest tiles: biases of groups of 16
            PackedWeight biased = weight;
            biased.scales = ScaleForm::kBF16;
            biased.has_zero_points = false;
            biased.has_bias = true;
            biased.group = 16;
            const cuda::Sm90QuantPlan own = cuda::sm90_quant_plan(biased, rows, kSms);
            EXPECT_LE(cuda::sm90_quant_shared_bytes(own, biased), size_t{225} * 1024)
                << n << " " << k;
            EXPECT_GE(own.stages, 2);
          }
        }
      }
    }
  }
}

TEST(QuantPlan, ManyRowsAreDequantisedFirst) {
  DeviceFacts device;
  device.kind = DeviceKind::kCuda;
  device.compute_capability = 90;
  device.num_sms = 132;
  LinearShape shape{6144, 4096, DType::kBF16, LinearEpilogue::kStore, false, true, PackedKind::kF8};
  EXPECT_EQ(cuda::linear_path(shape, 2047, device), cuda::LinearPath::kSm90Quant);
  EXPECT_EQ(cuda::linear_path(shape, 2048, device), cuda::LinearPath::kSm90QuantLarge);
  shape.n = 1024;
  shape.k = 2112;  // parts that end within a tile
  EXPECT_EQ(cuda::linear_path(shape, 2048, device), cuda::LinearPath::kSm90Quant);
}

}  // namespace
}  // namespace warprow
