// SPDX-License-Identifier: Apache-2.0
#include "layers/group_tiles.h"

#include "base/dtype.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "tests/support/group_weights.h"
#include "tests/support/tile_weights.h"
#include "tests/weights/gguf_blocks.h"
#include "weights/quant_groups.h"

#include <cmath>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::vector<TensorType> quantised_types() {
  std::vector<TensorType> types;
  for (int i = 0; i < kNumValueTypes; ++i) {
    if (is_quantised(static_cast<TensorType>(i))) {
      types.push_back(static_cast<TensorType>(i));
    }
  }
  return types;
}

// Rows of valid blocks; each begins with another one.
std::vector<std::byte> rows_of(TensorType type, int64_t rows, int64_t cols) {
  const TensorTypeTraits& traits = tensor_type_traits(type);
  for (const test::GgufBlocks& record : test::load_gguf_blocks()) {
    if (record.format != traits.name) {
      continue;
    }
    const auto bytes = static_cast<size_t>(traits.block_bytes);
    const size_t stored = record.blocks.size() / bytes;
    std::vector<std::byte> out;
    for (int64_t b = 0; b < rows * cols / traits.block_elems; ++b) {
      const auto from =
          record.blocks.begin() + static_cast<int64_t>(static_cast<size_t>(b) * 7 % stored * bytes);
      out.insert(out.end(), from, from + traits.block_bytes);
    }
    return out;
  }
  return {};
}

struct Packed {
  PackedWeight weight;
  std::vector<std::byte> tiles;
};
Packed pack(TensorType type,
            const std::vector<std::byte>& rows,
            int64_t count,
            int64_t cols,
            const PackedWeight& form) {
  Packed out{form, {}};
  out.weight.n = static_cast<int32_t>(count);
  out.weight.k = static_cast<int32_t>(cols);
  out.tiles.resize(quant_tiles_bytes(out.weight));
  GroupTiles().pack(type, rows.data(), count, out.weight, out.tiles.data());
  return out;
}

// Expects each weight of the tiles to be what its number, and its scale and bias in bf16 stand for. One that is infinite or no
// number may be either.
void expect_values(TensorType type,
                   const std::vector<std::byte>& rows,
                   const Packed& packed,
                   const std::string& what) {
  const auto cols = static_cast<size_t>(packed.weight.k);
  const std::vector<uint16_t> got = test::tile_weights(packed.weight, packed.tiles.data());
  for (size_t r = 0; r < static_cast<size_t>(packed.weight.n); ++r) {
    const std::vector<uint16_t> wanted =
        test::group_weights(type,
                            rows.data() + r * tensor_row_bytes(type, packed.weight.k),
                            packed.weight.k,
                            packed.weight.kind == PackedKind::kTable);
    for (size_t c = 0; c < cols; ++c) {
      if (!std::isfinite(bf16_to_f32(wanted[c]))) {
        ASSERT_FALSE(std::isfinite(bf16_to_f32(got[r * cols + c])))
            << what << " " << r << ", " << c;
      } else {
        ASSERT_EQ(got[r * cols + c], wanted[c]) << what << " row " << r << ", column " << c;
      }
    }
  }
}

TEST(GroupTiles, EveryTypeKeepsItsValues) {
  ASSERT_EQ(quantised_types().size(), 20U);
  for (const TensorType type : quantised_types()) {
    const int64_t cols =
        tensor_type_traits(type).block_elems == 256 ? 512 : 608;  // the end of a tile
    for (const int64_t rows : {16, 41}) {
      const std::vector<std::byte> blocks = rows_of(type, rows, cols);
      ASSERT_FALSE(blocks.empty());
      expect_values(type,
                    blocks,
                    pack(type, blocks, rows, cols, group_tiles_form(type)),
                    tensor_type_name(type));
    }
  }
}

TEST(GroupTiles, EveryTypeKeepsItsValuesInTheTilesOfAnother) {
  for (const TensorType type : quantised_types()) {
    const std::vector<std::byte> blocks = rows_of(type, 32, 512);
    for (const TensorType other : quantised_types()) {
      if (!can_share_tiles(group_tiles_form(type), group_tiles_form(other))) {
        EXPECT_NE(type == TensorType::kMXFP4, other == TensorType::kMXFP4);
        continue;
      }
      const PackedWeight form = common_tiles(group_tiles_form(type), group_tiles_form(other));
      expect_values(type,
                    blocks,
                    pack(type, blocks, 32, 512, form),
                    std::string(tensor_type_name(type)) + " with " + tensor_type_name(other));
    }
  }
}

// Whatever bytes a file has: halves that are no numbers, infinite, denormal or the largest.
TEST(GroupTiles, HostileBlocksKeepTheirValues) {
  std::mt19937 rng(7);
  constexpr uint16_t kHalves[] = {
      0x7e00, 0xfe01, 0x7c00, 0xfc00, 0x0001, 0x8001, 0x7bff, 0xfbff, 0x0000, 0x8000};
  for (const TensorType type : quantised_types()) {
    const TensorTypeTraits& traits = tensor_type_traits(type);
    const int64_t blocks = 32 * 512 / traits.block_elems;
    std::vector<std::byte> rows(static_cast<size_t>(blocks * traits.block_bytes));
    for (std::byte& b : rows) {
      b = static_cast<std::byte>(rng());
    }
    for (int64_t b = 0; b < blocks && type != TensorType::kMXFP4; ++b) {
      std::byte* block = rows.data() + b * traits.block_bytes;
      std::byte* scale = block + test::scale_place(type);
      const uint16_t half = kHalves[rng() % std::size(kHalves)];
      std::memcpy(scale, &half, sizeof(half));
    }
    for (const TensorType other : {type, TensorType::kQ4_K, TensorType::kQ6_K}) {
      if (!can_share_tiles(group_tiles_form(type), group_tiles_form(other))) {
        continue;
      }
      const PackedWeight form = common_tiles(group_tiles_form(type), group_tiles_form(other));
      expect_values(type, rows, pack(type, rows, 32, 512, form), tensor_type_name(type));
    }
  }
}

TEST(GroupTiles, FormsAndBytes) {
  const auto bits = [](TensorType type) {
    PackedWeight weight = group_tiles_form(type);
    weight.n = 64;
    weight.k = 1024;
    return static_cast<double>(quant_tiles_bytes(weight)) * 8 / (64 * 1024);
  };
  EXPECT_EQ(group_tiles_form(TensorType::kQ4_0).kind, PackedKind::kQ4);
  EXPECT_EQ(group_tiles_form(TensorType::kQ4_0).zero_point, 8);
  EXPECT_FALSE(group_tiles_form(TensorType::kQ4_0).has_bias);
  EXPECT_TRUE(group_tiles_form(TensorType::kQ4_K).has_bias);
  EXPECT_EQ(group_tiles_form(TensorType::kQ6_K).kind, PackedKind::kQ6);
  EXPECT_EQ(group_tiles_form(TensorType::kQ6_K).group, 16);
  EXPECT_EQ(group_tiles_form(TensorType::kMXFP4).kind, PackedKind::kTable);
  EXPECT_EQ(bits(TensorType::kMXFP4), 5.0);
  EXPECT_EQ(group_tiles_form(TensorType::kQ8_0).kind, PackedKind::kQ8);
  EXPECT_EQ(group_tiles_form(TensorType::kQ2_K).kind, PackedKind::kQ4);
  EXPECT_TRUE(group_tiles_form(TensorType::kQ2_K).has_bias);
  EXPECT_EQ(group_tiles_form(TensorType::kQ3_K).zero_point, 8);
  EXPECT_EQ(bits(TensorType::kQ2_K), 6.0);
  EXPECT_EQ(bits(TensorType::kQ3_K), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ4_NL), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ4_XS), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ3_XXS), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ3_S), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ2_XXS), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ2_S), 6.0);
  EXPECT_EQ(bits(TensorType::kIQ1_S), 5.0);
  EXPECT_EQ(bits(TensorType::kIQ1_M), 6.0);
  EXPECT_EQ(bits(TensorType::kQ4_0), 4.5);
  EXPECT_EQ(bits(TensorType::kQ4_K), 5.0);
  EXPECT_EQ(bits(TensorType::kQ8_0), 8.5);
  EXPECT_EQ(bits(TensorType::kQ5_K), 7.0);
  EXPECT_EQ(bits(TensorType::kQ6_K), 7.0);
  const PackedWeight both =
      common_tiles(group_tiles_form(TensorType::kQ4_K), group_tiles_form(TensorType::kQ6_K));
  EXPECT_EQ(both.kind, PackedKind::kQ6);
  EXPECT_EQ(both.group, 16);
  EXPECT_TRUE(both.has_bias);
  EXPECT_EQ(both.zero_point, 0);  // it is in the biases
  EXPECT_EQ(
      common_tiles(group_tiles_form(TensorType::kQ4_K), group_tiles_form(TensorType::kQ4_1)).kind,
      PackedKind::kQ4);
  // Places in one table; with another table the numbers themselves.
  const auto of = [](TensorType a, TensorType b) {
    return common_tiles(group_tiles_form(a), group_tiles_form(b)).kind;
  };
  EXPECT_EQ(of(TensorType::kIQ4_NL, TensorType::kIQ4_XS), PackedKind::kTable);
  EXPECT_EQ(of(TensorType::kIQ2_XXS, TensorType::kIQ2_S), PackedKind::kTable);
  EXPECT_EQ(of(TensorType::kIQ3_XXS, TensorType::kIQ3_S), PackedKind::kQ6);
  EXPECT_EQ(of(TensorType::kIQ4_XS, TensorType::kQ4_K), PackedKind::kQ8);
}

}  // namespace
}  // namespace warprow
