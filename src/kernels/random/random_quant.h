// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/float8.h"
#include "base/hd.h"
#include "base/philox.h"
#include "kernels/linear/packed_weight.h"

#include <cstdint>

namespace warprow {

// A random quantised matrix, in place of a checkpoint. A number and a scale are functions of their place in the whole
// matrix, in integers up to one product for a scale, so they are the same on every device, in every rank's part and with
// any number of threads.
//
// The sum of the four bytes of a random word less its mean is close to a normal distribution, -510 to 510. A number is that,
// rounded to e4m3 (kF8; magnitudes above 448 become 448), or divided by 4 (kQ8, zero point 128) or 64 (kQ4, zero point 8),
// to nearest. Scales are 0.75 to 1.25 times `scale`; of integers they are bf16 numbers that are halves too.
struct RandomQuant {
  PackedKind kind = PackedKind::kF8;  // kF8, kQ8 or kQ4
  uint64_t seed = 0;
  float scale = 1.0F;
  int64_t rows_each = 1;  // rows and columns that share a scale
  int64_t cols_each = 128;
};

inline constexpr int32_t kMostRandomSum = 510;

constexpr int32_t random_zero_point(PackedKind kind) {
  return kind == PackedKind::kF8 ? 0 : kind == PackedKind::kQ8 ? 128 : 8;
}
// The deviation of numbers.
constexpr float random_deviation(PackedKind kind) {
  return 147.799865F / (kind == PackedKind::kF8 ? 1.0F : kind == PackedKind::kQ8 ? 4.0F : 64.0F);
}

// sum: -kMostRandomSum to kMostRandomSum. The number as it is stored, not yet less its zero point.
WR_HD inline uint8_t random_number(PackedKind kind, int32_t sum) {
  if (kind == PackedKind::kF8) {
    return f32_to_f8_e4m3(static_cast<float>(sum));
  }
  const int32_t zero = kind == PackedKind::kQ8 ? 128 : 8;
  const int32_t step = kind == PackedKind::kQ8 ? 4 : 64;
  const int32_t magnitude = ((sum < 0 ? -sum : sum) + step / 2) / step;
  const int32_t number = sum < 0 ? zero - magnitude : zero + magnitude;
  return static_cast<uint8_t>(number < 2 * zero ? number : 2 * zero - 1);
}

// The sums of four columns from 4 * quad on.
WR_HD inline void random_sums(uint64_t seed, int64_t row, int64_t quad, int32_t (&sums)[4]) {
  const PhiloxBlock block =
      philox4x32_10({{static_cast<uint32_t>(quad), static_cast<uint32_t>(row), 0, 0}},
                    static_cast<uint32_t>(seed),
                    static_cast<uint32_t>(seed >> 32));
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = block.word[i];
    sums[i] = static_cast<int32_t>((word & 255U) + (word >> 8 & 255U) + (word >> 16 & 255U) +
                                   (word >> 24)) -
              kMostRandomSum;
  }
}

WR_HD inline float random_scale(const RandomQuant& random, int64_t row, int64_t col) {
  const PhiloxBlock block = philox4x32_10({{static_cast<uint32_t>(col / random.cols_each),
                                            static_cast<uint32_t>(row / random.rows_each),
                                            1,
                                            0}},
                                          static_cast<uint32_t>(random.seed),
                                          static_cast<uint32_t>(random.seed >> 32));
  const float scale = random.scale * (static_cast<float>(384 + (block.word[0] & 255U)) * 0x1p-9F);
  const float rounded = bf16_to_f32(f32_to_bf16(scale));
  if (random.kind == PackedKind::kF8) {
    return rounded;
  }
  return rounded < 0x1p-17F ? 0x1p-17F : rounded > 0x1p15F ? 0x1p15F : rounded;
}

}  // namespace warprow
