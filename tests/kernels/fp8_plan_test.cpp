// SPDX-License-Identifier: Apache-2.0
// The form of e4m3 matrices in memory, and plans of their products.
#include "base/math.h"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"
#include "kernels/linear/fp8/sm90_fp8_large.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstring>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

PackedWeight weight(int32_t n, int32_t k, F8Inputs inputs) {
  PackedWeight w;
  w.kind = PackedKind::kF8F8;
  w.group = 128;
  w.inputs = inputs;
  w.n = n;
  w.k = k;
  return w;
}

TEST(Fp8Tiles, ChunksOfARowAreSwizzledAndScalesFollow) {
  constexpr int32_t kK = 136;  // a tile, and 8 inputs of the next one
  for (const F8Inputs inputs : {F8Inputs::kRow, F8Inputs::kGroup}) {
    const PackedWeight w = weight(16, kK, inputs);
    std::vector<uint8_t> numbers(16 * kK);
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<uint8_t>(i * 7 + 1);
    }
    const std::vector<float> scales = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11,
                                       12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
                                       23, 24, 25, 26, 27, 28, 29, 30, 31, 32};  // [16, 2]
    std::vector<std::byte> out(quant_row_bytes(w), std::byte{0xff});
    pack_quant_tiles(w, 16, {numbers.data(), scales.data(), nullptr}, out);
    EXPECT_EQ(out.size(), 2 * 2048 + 128);
    const auto byte = [&](int64_t at) {
      return std::to_integer<uint8_t>(out[static_cast<size_t>(at)]);
    };
    // Row 10 is row 2 of the second eight: its chunk 5 is at place 7.
    EXPECT_EQ(byte(10 * 128 + 7 * 16 + 3), numbers[10 * kK + 5 * 16 + 3]);
    EXPECT_EQ(byte(2048 + 3 * 16 + 3 * 128), numbers[3 * kK + 128]);
    EXPECT_EQ(byte(2048 + 3 * 16 + 3 * 128 + 8), 0);  // behind the end
    std::vector<float> stored(32);
    std::memcpy(stored.data(), out.data() + 2 * 2048, 32 * sizeof(float));
    EXPECT_EQ(stored[1], 3.0F);
    EXPECT_EQ(stored[15], 31.0F);
    EXPECT_EQ(stored[17], inputs == F8Inputs::kGroup ? 4.0F : 0.0F);
  }
}

TEST(Fp8Plan, FitsAnSmAndItsPartsDependOnTheMatrixAlone) {
  for (const F8Inputs inputs : {F8Inputs::kRow, F8Inputs::kGroup}) {
    for (const int32_t n : {64, 1024, 4096, 6144, 24576}) {
      for (const int32_t k : {64, 200, 1024, 4096, 12288, 28672}) {
        const PackedWeight w = weight(n, k, inputs);
        const int32_t parts = cuda::sm90_fp8_parts(n, k);
        EXPECT_TRUE(parts == 1 || k >= 512 * parts);
        for (const int32_t rows : {1, 2, 8, 9, 17, 33, 65, 129, 700, 8192}) {
          const cuda::Sm90Fp8Plan plan = cuda::sm90_fp8_plan(w, rows, 132);
          EXPECT_EQ(plan.split, parts);
          EXPECT_EQ(plan.resident,
                    parts == 1 && rows > 64 && (n + 63) / 64 * ((rows + 127) / 128) > 132);
          EXPECT_TRUE(plan.groups == 1 || (plan.groups == 2 && rows > 64 && parts > 1));
          EXPECT_GE(plan.stages, 2);
          EXPECT_GE(plan.cols, std::min(rows, 128));
          EXPECT_LE(cuda::sm90_fp8_shared_bytes(plan, k),
                    static_cast<size_t>(cuda::kSm90GemmSharedBytes))
              << n << " x " << k << ", " << rows << " rows";
          const cuda::Sm90Fp8LargePlan large = cuda::sm90_fp8_large_plan(w, rows, 132);
          EXPECT_EQ(large.parts, parts);
          EXPECT_TRUE(large.cols == 128 || (parts == 1 && inputs == F8Inputs::kRow));
        }
      }
    }
  }
}

TEST(Fp8Plan, TakesTwoGroupsWhereTheySaveAWave) {
  const auto groups = [](int32_t n, int32_t k, int32_t rows) {
    return cuda::sm90_fp8_plan(weight(n, k, F8Inputs::kRow), rows, 132).groups;
  };
  EXPECT_EQ(groups(4096, 12288, 128), 1);
  EXPECT_EQ(groups(4096, 12288, 129), 2);
  EXPECT_EQ(groups(4096, 12288, 256), 2);
  // Clusters of four CTAs fill 120 of 132 SMs.
  EXPECT_EQ(groups(1024, 2048, 128), 1);
  EXPECT_EQ(groups(1024, 2048, 256), 2);
  EXPECT_EQ(groups(24576, 4096, 256), 1);
}

}  // namespace
}  // namespace warprow
