// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "kernels/linear/cpu/pack.h"
#include "tests/kernels/linear_fixture.h"

#include <algorithm>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using namespace linear_test;

PackedWeight q8_shape(int32_t n, int32_t k) { return shape_of(PackedKind::kQ8, n, k); }

TEST(PackTest, BytesPerWeight) {
  PackedWeight q4_1 = shape_of(PackedKind::kQ4, 32, 64);
  q4_1.has_bias = true;
  EXPECT_EQ(cpu::packed_bytes(q4_1), 32 * 64 * 5 / 8);  // as many bytes as in the file
  EXPECT_EQ(cpu::packed_panel_bytes(q4_1), 16 * 64 * 5 / 8);
  EXPECT_EQ(cpu::packed_bytes(q8_shape(17, 64)),
            2 * 16 * (64 + 4));  // n is rounded up to whole panels
  EXPECT_EQ(cpu::packed_bytes(shape_of(PackedKind::kBF16, 16, 3)), 128);  // pairs of inputs
  // The file's K-quants take 144, 176 and 210 bytes per 256 weights.
  const auto split_bytes = [](PackedKind kind, int32_t group, bool has_bias) {
    PackedWeight w = shape_of(kind, 16, 256);
    w.group = group;
    w.has_bias = has_bias;
    w.scales = ScaleForm::kSplit;
    return cpu::packed_bytes(w) / 16;
  };
  EXPECT_EQ(split_bytes(PackedKind::kQ4, 32, true), 148);
  EXPECT_EQ(split_bytes(PackedKind::kQ5, 32, true), 180);
  EXPECT_EQ(split_bytes(PackedKind::kQ6, 16, false), 212);  // a panel is a multiple of 64 bytes
}

TEST(PackTest, PanelByPanelEqualsAtOnce) {
  const PackedWeight shape = q8_shape(40, 64);
  std::mt19937 rng(3);
  std::vector<int8_t> q(40 * 64);
  for (int8_t& v : q) {
    v = static_cast<int8_t>(rng());
  }
  std::vector<float> scale(40 * 2);
  for (float& s : scale) {
    s = random_half(rng);
  }
  const size_t bytes = cpu::packed_bytes(shape);
  std::vector<std::byte> whole(bytes, std::byte{0xee});
  std::vector<std::byte> pieces(bytes, std::byte{0x11});
  cpu::pack_groups(shape, whole.data(), 0, 40, {q.data(), scale.data(), nullptr});
  for (const int64_t first : {32, 0, 16}) {  // the order does not matter
    cpu::pack_groups(
        shape,
        pieces.data() + first / 16 * static_cast<int64_t>(cpu::packed_panel_bytes(shape)),
        first,
        std::min<int64_t>(16, 40 - first),
        {q.data() + first * 64, scale.data() + first * 2, nullptr});
  }
  EXPECT_EQ(whole, pieces);
  // Input 5 of row 18 is byte 1 of lane 2's dword in the second vector of the second panel.
  EXPECT_EQ(static_cast<int8_t>(whole[cpu::packed_panel_bytes(shape) + 64 + 2 * 4 + 1]),
            q[18 * 64 + 5]);
}

TEST(PackTest, NibblesOfBothZeroPoints) {
  for (const int zero_point : {0, 8}) {
    PackedWeight shape = shape_of(PackedKind::kQ4, 16, 32);
    shape.zero_point = zero_point;
    std::vector<int8_t> q(16 * 32);
    for (size_t i = 0; i < q.size(); ++i) {
      q[i] = static_cast<int8_t>(static_cast<int>(i * 7 % 16) - zero_point);
    }
    const std::vector<float> scale(16, 1.0F);
    std::vector<std::byte> packed(cpu::packed_bytes(shape));
    cpu::pack_groups(shape, packed.data(), 0, 16, {q.data(), scale.data(), nullptr});
    for (int row = 0; row < 16; ++row) {
      for (int i = 0; i < 16; ++i) {
        const auto pair =
            static_cast<int>(packed[static_cast<size_t>(i / 4 * 64 + row * 4 + i % 4)]);
        ASSERT_EQ((pair & 15) - zero_point, q[static_cast<size_t>(row * 32 + i)]);
        ASSERT_EQ((pair >> 4) - zero_point, q[static_cast<size_t>(row * 32 + 16 + i)]);
      }
    }
  }
}

// 6-bit weights: the low four bits as nibbles, the high two bits in the plane after the group's nibbles.
TEST(PackTest, UpperBitsLieInThePlane) {
  PackedWeight shape = shape_of(PackedKind::kQ6, 16, 16);
  shape.group = 16;
  shape.zero_point = 32;
  std::vector<int8_t> q(16 * 16);
  for (size_t i = 0; i < q.size(); ++i) {
    q[i] = static_cast<int8_t>(static_cast<int>(i * 11 % 64) - 32);
  }
  const std::vector<float> scale(16, 1.0F);
  std::vector<std::byte> packed(cpu::packed_bytes(shape));
  cpu::pack_groups(shape, packed.data(), 0, 16, {q.data(), scale.data(), nullptr});
  for (int row = 0; row < 16; ++row) {
    for (int i = 0; i < 16; ++i) {
      const auto pair =
          static_cast<int>(packed[static_cast<size_t>(i % 8 / 4 * 64 + row * 4 + i % 4)]);
      const auto plane = static_cast<int>(packed[static_cast<size_t>(128 + row * 4 + i % 4)]);
      const int low = i < 8 ? pair & 15 : pair >> 4;
      ASSERT_EQ((low | ((plane >> (i / 4 * 2) & 3) << 4)) - 32,
                q[static_cast<size_t>(row * 16 + i)]);
    }
  }
}

TEST(PackTest, EveryFiniteHalfSurvivesAsScale) {
  const PackedWeight shape = q8_shape(16, 32);
  const std::vector<int8_t> q(16 * 32, 1);
  std::vector<std::byte> packed(cpu::packed_bytes(shape));
  for (uint32_t first = 0; first < 0x10000; first += 16) {
    std::vector<float> scale(16);
    for (uint32_t i = 0; i < 16; ++i) {
      scale[i] = f16_to_f32(static_cast<uint16_t>(first + i));
    }
    cpu::pack_groups(shape, packed.data(), 0, 16, {q.data(), scale.data(), nullptr});
    for (uint32_t i = 0; i < 16; ++i) {
      uint16_t stored = 0;
      std::memcpy(&stored, packed.data() + 512 + i * 2, sizeof stored);
      if ((first & 0x7c00U) != 0x7c00U) {
        ASSERT_EQ(stored, first + i);
      }
    }
  }
}

TEST(PackTest, MisuseIsCaught) {
  const ScopedCheckThrows throws;
  const PackedWeight shape = q8_shape(40, 32);
  const std::vector<int8_t> q(40 * 32);
  std::vector<float> scale(40, 1.0F);
  std::vector<std::byte> packed(cpu::packed_bytes(shape));
  const cpu::GroupRows rows{q.data(), scale.data(), nullptr};
  EXPECT_THROW(cpu::pack_groups(shape, packed.data(), 8, 16, rows), CheckFailure)
      << "not a panel's first row";
  EXPECT_THROW(cpu::pack_groups(shape, packed.data(), 0, 24, rows), CheckFailure) << "half a panel";
  EXPECT_THROW(cpu::pack_groups(shape, packed.data(), 32, 16, rows), CheckFailure) << "beyond n";
  EXPECT_THROW(cpu::pack_values(shape, packed.data(), 0, 40, scale.data()), CheckFailure)
      << "quantised kind";
  scale[7] = 1.0F / 3;
  EXPECT_THROW(cpu::pack_groups(shape, packed.data(), 0, 40, rows), CheckFailure) << "no half";
  scale[7] = 1e6F;
  EXPECT_THROW(cpu::pack_groups(shape, packed.data(), 0, 40, rows), CheckFailure)
      << "too large for a half";
  PackedWeight bad = shape;
  bad.k = 33;
  EXPECT_THROW(cpu::packed_bytes(bad), CheckFailure) << "k is not whole groups";
  bad = shape;
  bad.zero_point = 8;
  EXPECT_THROW(cpu::packed_bytes(bad), CheckFailure) << "kQ8 is signed";
}

}  // namespace
}  // namespace warprow
