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

// Word i, 0 to 3.
__device__ __forceinline__ uint32_t word_of(const uint4& words, int i) {
  return i == 0 ? words.x : i == 1 ? words.y : i == 2 ? words.z : words.w;
}

// A lane's words of a tile.
struct QuantWords {
  uint4 of_steps;  // of kStepsOfLoad steps of 16 inputs
  uint4 upper;     // kQ6: the upper bits of the whole tile
};

// How a number becomes a float: its bits are taken as they are. They are a subnormal float or one of the smallest exponent, whose
// steps are equal, so their value is the number times the smallest float (2^-133 of bf16, 2^-149 of float32), exactly, for up to
// 8 bits of a bf16 and 24 of a float32. A number further up in the bits is a power of two larger. Scales take these factors
// back, but for QuantNumbers::kTimes, else they could be too large for a float: sums are multiplied by it in the end. Powers of
// two change no digit. quant_scale_word and quant_float_scale are what tiles hold.

// The scale of a row in a group, for pairs of inputs. word: as it is in a tile.
//
// A bf16. The zero point is 0 or a power of two, so its product with the scale is exact and the weight is rounded once.
struct Bf16Scale {
  static constexpr int kBytes = 2;
  static constexpr bool kHasZeros = false;
  uint32_t upper;  // the scale, twice
  uint32_t less;
  uint32_t zero;

  __device__ void set_zero(uint32_t bits) { zero = bits ^ 0x80008000U; }
  __device__ void set_scale(uint32_t word) {
    upper = __byte_perm(word, 0, 0x1010);
    less = mul_bf16x2(upper, zero);
  }
  [[nodiscard]] __device__ uint32_t weights(uint32_t bits) const {
    return fma_bf16x2(bits, upper, less);
  }
};

// A bf16, any zero point.
struct Bf16ZeroScale {
  static constexpr int kBytes = 2;
  static constexpr bool kHasZeros = true;
  uint32_t upper;
  uint32_t zero;

  __device__ void set_zero(uint32_t bits) { zero = bits; }
  __device__ void set_scale(uint32_t word) { upper = __byte_perm(word, 0, 0x1010); }
  [[nodiscard]] __device__ uint32_t weights(uint32_t bits) const {
    return mul_bf16x2(sub_bf16x2(bits, zero), upper);
  }
};

// A bf16 of numbers that have no zero point.
struct Bf16Factor {
  static constexpr int kBytes = 2;
  static constexpr bool kHasZeros = false;
  uint32_t upper;

  __device__ void set_zero(uint32_t /*bits*/) {}
  __device__ void set_scale(uint32_t word) { upper = __byte_perm(word, 0, 0x1010); }
  [[nodiscard]] __device__ uint32_t times(uint32_t numbers) const {
    return mul_bf16x2(numbers, upper);
  }
};

// Two bf16, any zero point.
struct TwoBf16Scale {
  static constexpr int kBytes = 4;
  static constexpr bool kHasZeros = true;
  uint32_t upper;
  uint32_t lower;
  uint32_t zero;

  __device__ void set_zero(uint32_t bits) { zero = bits; }
  __device__ void set_scale(uint32_t word) {
    upper = __byte_perm(word, 0, 0x3232);
    lower = __byte_perm(word, 0, 0x1010);
  }
  // numbers: two, exact.
  [[nodiscard]] __device__ uint32_t times(uint32_t numbers) const {
    return fma_bf16x2(numbers, upper, mul_bf16x2(numbers, lower));
  }
  [[nodiscard]] __device__ uint32_t weights(uint32_t bits) const {
    return times(sub_bf16x2(bits, zero));
  }
};

// weights: one of the four registers for 16 inputs, a pair of bf16, each the weight divided by kTimes. step: of 16 inputs, of the
// tile. half: inputs c and c + 1, or the ones 8 behind them. row: 0 is row u, 1 is row u + 8. scale: of that row.
// AnyScale: the type of scales that serves every matrix.
template <PackedKind kKind, bool kF32Scales>
struct QuantNumbers;

template <>
struct QuantNumbers<PackedKind::kF8, false> {
  using AnyScale = TwoBf16Scale;
  static constexpr int kStepsOfLoad = 2;  // of 16 inputs, in a lane's 16 bytes
  static constexpr float kTimes = 1.0F;
  __device__ static uint32_t zero_of(int /*row*/, uint32_t /*zero*/) { return 0; }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    // Two e4m3 numbers as bf16 that are 2^-120 times as large: their bits in the places of sign, exponent and fraction
    // (quant_f8_word). Without branches, as some callers know the row at run time only.
    const uint32_t word = word_of(words.of_steps, step % 2 * 2 + half);
    const uint32_t turned = __funnelshift_r(word, word, 4 * row);
    return scale.times((turned & (row == 0 ? 0x87f087f0U : 0x87808780U)) |
                       (word << 4 & (row == 0 ? 0U : 0x00700070U)));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ4, false> {
  using AnyScale = TwoBf16Scale;
  static constexpr int kStepsOfLoad = 4;
  static constexpr float kTimes = kPairTimes;
  // Bits of two zero points where weights() has those of the numbers.
  __device__ static uint32_t zero_of(int row, uint32_t zero) {
    return zero * 0x00010001U << (4 * row);
  }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    const uint32_t nibbles = word_of(words.of_steps, step % 4) >> (8 * half);
    return scale.weights(nibbles & 0x000f000fU << (4 * row));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ8, false> {
  using AnyScale = TwoBf16Scale;
  static constexpr int kStepsOfLoad = 2;
  static constexpr float kTimes = kPairTimes;
  __device__ static uint32_t zero_of(int /*row*/, uint32_t zero) { return zero * 0x00010001U; }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const Scale& scale) {
    // Row u has bytes 1 and 3 of a word, row u + 8 has bytes 0 and 2.
    return scale.weights(
        __byte_perm(word_of(words.of_steps, step % 2 * 2 + half), 0, row == 0 ? 0x4341 : 0x4240));
  }
};

// Float32 scales and biases. set_scale without a bias: of a matrix that has none.
//
// kSubtracts: serves every matrix: the zero point is subtracted. Else a matrix has biases or a zero point, not both, and the
// zero point's product with the scale takes the place of the bias. It is exact: a zero point is a power of two.
//
// The scale of a row whose numbers are nibbles. These are not shifted: in half a word row u has nibbles 0 and 2, row u + 8
// nibbles 1 and 3. scale[1]: of the nibbles that are 8 bits further up.
template <bool kSubtracts>
struct NibbleScale {
  float zero[2];
  float scale[2];
  float less;

  __device__ void set_codes(int row, const QuantCodes& codes) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      zero[i] = __uint_as_float(codes.zero_point << (4 * row + 8 * i));
    }
  }
  __device__ void set_scale(float of_row) {
    set_scale(of_row, kSubtracts ? -0.0F : -__fmul_rn(of_row, zero[0]));
  }
  __device__ void set_scale(float of_row, float bias) {
    scale[0] = of_row;
    scale[1] = __fmul_rn(of_row, 0x1p-8F);
    less = bias;
  }
  [[nodiscard]] __device__ float weight(uint32_t bits, int i) const {
    const float number = __uint_as_float(bits);
    return __fmaf_rn(kSubtracts ? __fsub_rn(number, zero[i]) : number, scale[i], less);
  }
};

template <>
struct QuantNumbers<PackedKind::kQ4, true> {
  using AnyScale = NibbleScale<true>;
  template <bool kHasBiases>
  using Scale = NibbleScale<false>;
  static constexpr int kStepsOfLoad = 4;
  static constexpr float kTimes = kFloatTimes;

  template <bool kSubtracts>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const NibbleScale<kSubtracts>& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const uint32_t mask = 0xfU << (4 * row + 8 * half);
    return pack_bf16(scale.weight(word & mask, half), scale.weight(word >> 16 & mask, half));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ6, true> {
  using AnyScale = NibbleScale<true>;
  template <bool kHasBiases>
  using Scale = NibbleScale<kHasBiases>;
  static constexpr int kStepsOfLoad = 4;
  static constexpr float kTimes = kFloatTimes;

  template <bool kSubtracts>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const NibbleScale<kSubtracts>& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const uint32_t pair = word_of(words.upper, step / 2);
    const uint32_t above = step % 2 == 0 ? pair : __byte_perm(pair, 0, 0x1032);
    const uint32_t mask = 0xfU << (4 * row + 8 * half);
    const uint32_t two = 0x30U << (4 * row + 8 * half);
    return pack_bf16(scale.weight((word & mask) | (above & two), half),
                     scale.weight((word >> 16 & mask) | (above >> 2 & two), half));
  }
};

// The scale of a row whose numbers are bytes.
template <bool kSubtracts>
struct ByteScale {
  float zero;
  float scale;
  float less;

  __device__ void set_codes(int /*row*/, const QuantCodes& codes) {
    zero = __uint_as_float(codes.zero_point);
  }
  __device__ void set_scale(float of_row) {
    set_scale(of_row, kSubtracts ? -0.0F : -__fmul_rn(of_row, zero));
  }
  __device__ void set_scale(float of_row, float bias) {
    scale = of_row;
    less = bias;
  }
  // The weight of byte i of a word.
  [[nodiscard]] __device__ float weight(uint32_t word, int i) const {
    const float number = __uint_as_float(__byte_perm(word, 0, 0x4440 + i));
    return __fmaf_rn(kSubtracts ? __fsub_rn(number, zero) : number, scale, less);
  }
};

template <>
struct QuantNumbers<PackedKind::kQ8, true> {
  using AnyScale = ByteScale<true>;
  template <bool kHasBiases>
  using Scale = ByteScale<kHasBiases>;
  static constexpr int kStepsOfLoad = 2;
  static constexpr float kTimes = kFloatTimes;

  template <bool kSubtracts>
  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const ByteScale<kSubtracts>& scale) {
    const uint32_t word = word_of(words.of_steps, step % 2 * 2 + half);
    return pack_bf16(scale.weight(word, 1 - row), scale.weight(word, 3 - row));
  }
};

// Picks four of eight bytes: each of the lower four nibbles of selector names one, 0 to 3 of a, 4 to 7 of b.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}

// The scale of a row whose numbers are places in a table of bytes. Scales may be as large or small as a float32 (MXFP4 has powers of
// two), so a byte is read as the float32 2^23 + byte, and kTimes is 1.
struct TableScale {
  static constexpr uint32_t kTwoTo23 = 0x4b000000U;  // the bits of 2^23
  float zero;
  float scale;
  uint32_t table[4];

  __device__ void set_codes(int /*row*/, const QuantCodes& codes) {
    zero = __uint_as_float(kTwoTo23 + codes.zero_point);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      table[i] = codes.table[i];
    }
  }
  __device__ void set_scale(float of_row) { scale = of_row; }
  __device__ void set_scale(float of_row, float /*bias*/) { scale = of_row; }
  // The numbers at the places that the lower four nibbles name, one a byte. prmt takes three bits of a place: it looks up in
  // both halves of the table, then chooses by the fourth.
  [[nodiscard]] __device__ uint32_t look_up(uint32_t nibbles) const {
    const uint32_t place = nibbles & 0x77777777U;
    const uint32_t lower = prmt(table[0], table[1], place);
    const uint32_t upper = prmt(table[2], table[3], place);
    return prmt(lower, upper, and_or(nibbles >> 1, 0x44444444U, 0x32103210U));
  }
  // The weight of byte i of a word.
  [[nodiscard]] __device__ float weight(uint32_t word, int i) const {
    return __fmul_rn(__fsub_rn(__uint_as_float(__byte_perm(word, kTwoTo23, 0x7440 + i)), zero),
                     scale);
  }
};

template <>
struct QuantNumbers<PackedKind::kTable, true> {
  using AnyScale = TableScale;
  template <bool kHasBiases>
  using Scale = TableScale;
  static constexpr int kStepsOfLoad = 4;
  static constexpr float kTimes = 1.0F;

  __device__ __forceinline__ static uint32_t weights(
      const QuantWords& words, int step, int half, int row, const TableScale& scale) {
    const uint32_t word = word_of(words.of_steps, step % 4);
    const int place = 2 * half + row;
    return pack_bf16(scale.weight(scale.look_up(word), place),
                     scale.weight(scale.look_up(word >> 16), place));
  }
};

// All four registers for 16 inputs: row u at c and c + 1; row u + 8; row u at c + 8 and c + 9; row u + 8. scales: of rows u and
// u + 8.
template <typename Numbers, typename Scale>
__device__ __forceinline__ void dequantise_step(const QuantWords& words,
                                                int step,
                                                const Scale (&scales)[2],
                                                uint32_t (&d)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    d[j] = Numbers::weights(words, step, j / 2, j % 2, scales[j % 2]);
  }
}

// Sets the fields of a row's scale that are the same for all groups. row: as in QuantNumbers.
template <PackedKind kKind, bool kF32Scales, typename Scale>
__device__ __forceinline__ void set_codes(const QuantCodes& codes, int row, Scale& scale) {
  if constexpr (kF32Scales) {
    scale.set_codes(row, codes);
  } else {
    scale.set_zero(QuantNumbers<kKind, kF32Scales>::zero_of(row, codes.zero_point));
  }
}

}  // namespace warprow::cuda
