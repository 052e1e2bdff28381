// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/quant/quant_tiles.h"

#include <cstdint>

// Numbers of a tile (quant_tiles.h) as bf16 in the registers of wgmma's operand A, times their scales.
namespace warprow::cuda {

__device__ __forceinline__ uint32_t mul_bf16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}
__device__ __forceinline__ uint32_t fma_bf16x2(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t out;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(c));
  return out;
}
__device__ __forceinline__ uint32_t sub_bf16x2(uint32_t a, uint32_t b) {
  uint32_t out;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(a), "r"(b));
  return out;
}

// (a & mask) | bits, in one instruction. The compiler takes two where both are constants.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(out) : "r"(a), "r"(mask), "r"(bits));
  return out;
}

// A row's scale and zero point in a group, for pairs of inputs.
struct QuantScale {
  uint32_t upper;  // both halves of the scale's word, twice
  uint32_t lower;
  uint32_t zero;  // as Numbers::zero_of makes it

  __device__ void set_scale(uint32_t word) {
    upper = __byte_perm(word, 0, 0x3232);
    lower = __byte_perm(word, 0, 0x1010);
  }
  // numbers: two, exact.
  [[nodiscard]] __device__ uint32_t times(uint32_t numbers) const {
    return fma_bf16x2(numbers, upper, mul_bf16x2(numbers, lower));
  }
};

// Word i, 0 to 3.
__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// The bits of 2^23 as a float32. A number below 2^23, put into the low bits, makes it the float32 2^23 + number.
constexpr uint32_t kTwoTo23 = 0x4b000000U;

// A lane's words of a tile.
struct QuantWords {
  uint4 of_steps;  // of kStepsOfLoad steps of 16 inputs
  uint4 upper;     // kQ6: the upper bits of the whole tile
};

// weights: one of the four registers for 16 inputs, a pair of bf16. step: of 16 inputs, of the tile. half: inputs c and c + 1,
// or the ones 8 behind them. row: 0 is row u, 1 is row u + 8. scale: of that row.
template <PackedKind kKind, bool kF32Scales>
struct QuantNumbers;

template <>
struct QuantNumbers<PackedKind::kF8, false> {
  using Scale = QuantScale;
  static constexpr int kStepsOfLoad = 2;  // of 16 inputs, in a lane's 16 bytes
  __device__ static uint32_t zero_of(uint32_t /*zero*/) { return 0; }

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    // Two e4m3 numbers in the upper bytes, as bf16 that are 2^-120 times as large: their bits in the places of sign, exponent
    // and fraction.
    const uint32_t upper = word_of(words.of_steps, step % 2 * 2 + half) << (8 * row);
    return scale.times((upper & 0x80008000U) | (upper >> 4 & 0x07f007f0U));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ4, false> {
  using Scale = QuantScale;
  static constexpr int kStepsOfLoad = 4;
  // 128 + zero as a bf16, twice. Exact up to 127: from 128 to 255 a bf16 has steps of 1.
  __device__ static uint32_t zero_of(uint32_t zero) { return (0x4300U + zero) * 0x00010001U; }

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t nibbles = word_of(words.of_steps, step % 4) >> (4 * row + 8 * half);
    const uint32_t more = and_or(nibbles, 0x000f000fU, 0x43004300U);  // 128 + q
    return scale.times(sub_bf16x2(more, scale.zero));
  }
};

// A selector for __byte_perm(word, kTwoTo23, ..): puts the row's first byte below the upper bytes of kTwoTo23. Row u has bytes
// 1 and 3 of a word, row u + 8 has bytes 0 and 2.
__device__ __forceinline__ uint32_t byte_selector(int row) { return row == 0 ? 0x7441 : 0x7440; }

template <>
struct QuantNumbers<PackedKind::kQ8, false> {
  using Scale = QuantScale;
  static constexpr int kStepsOfLoad = 2;
  // The bits of the float32 2^23 + zero.
  __device__ static uint32_t zero_of(uint32_t zero) { return kTwoTo23 + zero; }

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 2 * 2 + half);
    const auto number = [&](uint32_t selector) {
      const float more = __uint_as_float(__byte_perm(word, kTwoTo23, selector));
      return __fsub_rn(more, __uint_as_float(scale.zero));
    };
    const uint32_t first = byte_selector(row);
    return scale.times(pack_bf16(number(first), number(first + 2)));
  }
};

// Float32 scales and biases. A number is read as the float32 2^23 + number. Subtracting 2^23 + zero point is exact, and so is
// the product with the scale.
//
// The scale of a row whose numbers are nibbles. These are not shifted: in half a word row u has nibbles 0 and 2, row u + 8
// nibbles 1 and 3. So a number is read 16^nibble times too large, and its scale is divided by that.
struct NibbleScale {
  float zero[2];
  float scale[2];
  float bias;

  __device__ void set_codes(int row, const QuantCodes& codes) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      zero[i] = __uint_as_float(kTwoTo23 + (codes.zero_point << (4 * row + 8 * i)));
    }
  }
  __device__ void set_scale(int row, float of_row, float bias_of_row) {
    scale[0] = row == 0 ? of_row : __fmul_rn(of_row, 0x1p-4F);
    scale[1] = __fmul_rn(of_row, row == 0 ? 0x1p-8F : 0x1p-12F);
    bias = bias_of_row;
  }
  // bits: of a float32 that is 2^23 more than the number.
  [[nodiscard]] __device__ float weight(uint32_t bits, int i) const {
    return __fmaf_rn(__fsub_rn(__uint_as_float(bits), zero[i]), scale[i], bias);
  }
};

template <>
struct QuantNumbers<PackedKind::kQ4, true> {
  using Scale = NibbleScale;
  static constexpr int kStepsOfLoad = 4;

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const uint32_t mask = 0xfU << (4 * row + 8 * half);
    return pack_bf16(scale.weight(and_or(word, mask, kTwoTo23), half),
                     scale.weight(and_or(word >> 16, mask, kTwoTo23), half));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ6, true> {
  using Scale = NibbleScale;
  static constexpr int kStepsOfLoad = 4;

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const uint32_t pair = word_of(words.upper, step / 2);
    const uint32_t above = step % 2 == 0 ? pair : __byte_perm(pair, 0, 0x1032);
    const uint32_t mask = 0xfU << (4 * row + 8 * half);
    const uint32_t two = 0x30U << (4 * row + 8 * half);
    return pack_bf16(
        scale.weight(and_or(word, mask, and_or(above, two, kTwoTo23)), half),
        scale.weight(and_or(word >> 16, mask, and_or(above >> 2, two, kTwoTo23)), half));
  }
};

// The scale of a row whose numbers are bytes.
struct ByteScale {
  float zero;
  float scale;
  float bias;

  __device__ void set_codes(int /*row*/, const QuantCodes& codes) {
    zero = __uint_as_float(kTwoTo23 + codes.zero_point);
  }
  __device__ void set_scale(int /*row*/, float of_row, float bias_of_row) {
    scale = of_row;
    bias = bias_of_row;
  }
  // selector: of the byte, as byte_selector has it.
  [[nodiscard]] __device__ float weight(uint32_t word, uint32_t selector) const {
    const float number = __uint_as_float(__byte_perm(word, kTwoTo23, selector));
    return __fmaf_rn(__fsub_rn(number, zero), scale, bias);
  }
};

template <>
struct QuantNumbers<PackedKind::kQ8, true> {
  using Scale = ByteScale;
  static constexpr int kStepsOfLoad = 2;

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 2 * 2 + half);
    const uint32_t first = byte_selector(row);
    return pack_bf16(scale.weight(word, first), scale.weight(word, first + 2));
  }
};

// Picks four of eight bytes: each of the lower four nibbles of selector names one, 0 to 3 of a, 4 to 7 of b.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}

struct TableScale : ByteScale {
  uint32_t table[4];

  __device__ void set_codes(int row, const QuantCodes& codes) {
    ByteScale::set_codes(row, codes);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      table[i] = codes.table[i];
    }
  }
  // The numbers at the places that the lower four nibbles name, one a byte. prmt takes three bits of a place: it looks up in
  // both halves of the table, then chooses by the fourth.
  [[nodiscard]] __device__ uint32_t look_up(uint32_t nibbles) const {
    const uint32_t place = nibbles & 0x77777777U;
    const uint32_t lower = prmt(table[0], table[1], place);
    const uint32_t upper = prmt(table[2], table[3], place);
    return prmt(lower, upper, and_or(nibbles >> 1, 0x44444444U, 0x32103210U));
  }
};

template <>
struct QuantNumbers<PackedKind::kTable, true> {
  using Scale = TableScale;
  static constexpr int kStepsOfLoad = 4;

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const uint32_t selector = 0x7440U + 2 * half + row;
    return pack_bf16(scale.weight(scale.look_up(word), selector),
                     scale.weight(scale.look_up(word >> 16), selector));
  }
};

// All four registers for 16 inputs: row u at c and c + 1; row u + 8; row u at c + 8 and c + 9; row u + 8. scales: of rows u and
// u + 8.
template <typename Numbers>
__device__ __forceinline__ void dequantise_step(const QuantWords& words,
                                                int step,
                                                const typename Numbers::Scale (&scales)[2],
                                                uint32_t (&d)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    d[j] = Numbers::weights(words, step, j / 2, j % 2, scales[j % 2]);
  }
}

}  // namespace warprow::cuda
