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

// A lane's numbers of a tile.
template <PackedKind kKind>
struct QuantWords {
  static constexpr int kLoads = quant_number_bytes(kKind) / (32 * 16);
  uint4 of[kLoads];

  [[nodiscard]] __device__ __forceinline__ uint32_t word(int i) const {
    const uint4& four = of[i / 4];
    return i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
  }
};

// How a number becomes a bf16: its bits are taken as they are. They are a subnormal bf16 or one of the smallest exponent, whose
// steps are equal, so their value is the number times the smallest one (2^-133), exactly, for up to 8 bits. A number further up in
// the bits is a power of two larger. Scales take these factors back, but for QuantNumbers::kTimes, else they could be too large for
// a bf16: sums are multiplied by it in the end. Powers of two change no digit. quant_scale_word is what tiles hold.

// The scale of a row in a group, for pairs of inputs. word: as it is in a tile, with what else is in its kBytes.
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

// A bf16 and a bias, another bf16. There is no zero point.
struct Bf16BiasScale {
  static constexpr int kBytes = 4;
  static constexpr bool kHasZeros = false;
  uint32_t upper;
  uint32_t less;

  __device__ void set_zero(uint32_t /*bits*/) {}
  __device__ void set_scale(uint32_t word) {
    upper = __byte_perm(word, 0, 0x1010);
    less = __byte_perm(word, 0, 0x3232);
  }
  [[nodiscard]] __device__ uint32_t weights(uint32_t bits) const {
    return fma_bf16x2(bits, upper, less);
  }
};

// Bf16Scale or Bf16BiasScale, as the matrix has it.
struct OneBf16Scale : Bf16Scale {
  __device__ void set_scale(uint32_t word, QuantScales form) {
    upper = __byte_perm(word, 0, 0x1010);
    less = form == QuantScales::kBiased ? __byte_perm(word, 0, 0x3232) : mul_bf16x2(upper, zero);
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

// Any of these, as the matrix has it. What the matrix lacks is -0 here, which changes no sum, not even the sign of zero.
struct AnyBf16Scale {
  static constexpr bool kHasZeros = true;
  uint32_t upper;
  uint32_t lower;  // of two bf16
  uint32_t less;   // the bias
  uint32_t zero;

  __device__ void set_zero(uint32_t bits) { zero = bits; }
  // form: of the matrix.
  __device__ void set_scale(uint32_t word, QuantScales form) {
    upper = __byte_perm(word, 0, form == QuantScales::kTwo ? 0x3232 : 0x1010);
    lower = form == QuantScales::kTwo ? __byte_perm(word, 0, 0x1010) : 0x80008000U;
    less = form == QuantScales::kBiased ? __byte_perm(word, 0, 0x3232) : 0x80008000U;
  }
  [[nodiscard]] __device__ uint32_t times(uint32_t numbers) const {
    return fma_bf16x2(numbers, upper, fma_bf16x2(numbers, lower, less));
  }
  [[nodiscard]] __device__ uint32_t weights(uint32_t bits) const {
    return times(sub_bf16x2(bits, zero));
  }
};

// weights: one of the four registers for 16 inputs, a pair of bf16, each the weight divided by kTimes. step: of 16 inputs, of the
// tile. half: inputs c and c + 1, or the ones 8 behind them. row: 0 is row u, 1 is row u + 8. scale: of that row.
// AnyScale: the type of scales that serves every matrix.
template <PackedKind kKind>
struct QuantNumbers;

template <>
struct QuantNumbers<PackedKind::kF8> {
  using AnyScale = TwoBf16Scale;
  using Words = QuantWords<PackedKind::kF8>;
  static constexpr float kTimes = 1.0F;
  __device__ static uint32_t zero_of(int /*row*/, uint32_t /*zero*/) { return 0; }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const Words& words, int step, int half, int row, const Scale& scale) {
    // Two e4m3 numbers as bf16 that are 2^-120 times as large: their bits in the places of sign, exponent and fraction
    // (quant_f8_word). Without branches, as some callers know the row at run time only.
    const uint32_t word = words.word(step * 2 + half);
    const uint32_t turned = __funnelshift_r(word, word, 4 * row);
    return scale.times((turned & (row == 0 ? 0x87f087f0U : 0x87808780U)) |
                       (word << 4 & (row == 0 ? 0U : 0x00700070U)));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ4> {
  using AnyScale = AnyBf16Scale;
  using Words = QuantWords<PackedKind::kQ4>;
  static constexpr float kTimes = kIntegerTimes;
  // Bits of two zero points where weights() has those of the numbers.
  __device__ static uint32_t zero_of(int row, uint32_t zero) {
    return zero * 0x00010001U << (4 * row);
  }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const Words& words, int step, int half, int row, const Scale& scale) {
    const uint32_t nibbles = words.word(step) >> (8 * half);
    return scale.weights(nibbles & 0x000f000fU << (4 * row));
  }
};

// Of a word with bytes of rows u and u + 8, those of one: row u has bytes 1 and 3, row u + 8 bytes 0 and 2.
__device__ __forceinline__ uint32_t bytes_of_row(uint32_t word, int row) {
  return __byte_perm(word, 0, row == 0 ? 0x4341 : 0x4240);
}

template <>
struct QuantNumbers<PackedKind::kQ6> {
  using AnyScale = AnyBf16Scale;
  using Words = QuantWords<PackedKind::kQ6>;
  static constexpr float kTimes = kIntegerTimes;
  __device__ static uint32_t zero_of(int /*row*/, uint32_t zero) { return zero * 0x00010001U; }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const Words& words, int step, int half, int row, const Scale& scale) {
    const int first = step / 2 * 3;
    const int at = step % 2 * 2 + half;
    if (at < 3) {
      const uint32_t word = words.word(first + at);
      return scale.weights((row == 0 ? word >> 8 : word) & 0x003f003fU);
    }
    const uint32_t lower =
        and_or(words.word(first) >> 6, 0x03030303U, words.word(first + 1) >> 4 & 0x0c0c0c0cU);
    return scale.weights(bytes_of_row(and_or(words.word(first + 2) >> 2, 0x30303030U, lower), row));
  }
};

template <>
struct QuantNumbers<PackedKind::kQ8> {
  using AnyScale = AnyBf16Scale;
  using Words = QuantWords<PackedKind::kQ8>;
  static constexpr float kTimes = kIntegerTimes;
  __device__ static uint32_t zero_of(int /*row*/, uint32_t zero) { return zero * 0x00010001U; }

  template <typename Scale>
  __device__ __forceinline__ static uint32_t weights(
      const Words& words, int step, int half, int row, const Scale& scale) {
    return scale.weights(bytes_of_row(words.word(step * 2 + half), row));
  }
};

// Picks four of eight bytes: each of the lower four nibbles of selector names one, 0 to 3 of a, 4 to 7 of b.
__device__ __forceinline__ uint32_t prmt(uint32_t a, uint32_t b, uint32_t selector) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(out) : "r"(a), "r"(b), "r"(selector));
  return out;
}

// The scale of a row whose numbers are places in a table of bytes, a float32. It may be as large or small as one can be (MXFP4 has
// powers of two), so a byte is read as the float32 2^23 + byte, and kTimes is 1.
struct TableScale {
  static constexpr int kBytes = 4;
  static constexpr bool kHasZeros = false;
  static constexpr uint32_t kTwoTo23 = 0x4b000000U;  // the bits of 2^23
  float zero;
  float scale;
  uint32_t table[4];

  __device__ void set_codes(const QuantCodes& codes) {
    zero = __uint_as_float(kTwoTo23 + codes.zero_point);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      table[i] = codes.table[i];
    }
  }
  __device__ void set_scale(uint32_t word) { scale = __uint_as_float(word); }
  __device__ void set_scale(uint32_t word, QuantScales /*form*/) { set_scale(word); }
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
struct QuantNumbers<PackedKind::kTable> {
  using AnyScale = TableScale;
  using Words = QuantWords<PackedKind::kTable>;
  static constexpr float kTimes = 1.0F;

  __device__ __forceinline__ static uint32_t weights(
      const Words& words, int step, int half, int row, const TableScale& scale) {
    const uint32_t word = words.word(step);
    const int place = 2 * half + row;
    return pack_bf16(scale.weight(scale.look_up(word), place),
                     scale.weight(scale.look_up(word >> 16), place));
  }
};

// All four registers for 16 inputs: row u at c and c + 1; row u + 8; row u at c + 8 and c + 9; row u + 8. scales: of rows u and
// u + 8.
template <typename Numbers, typename Scale>
__device__ __forceinline__ void dequantise_step(const typename Numbers::Words& words,
                                                int step,
                                                const Scale (&scales)[2],
                                                uint32_t (&d)[4]) {
#pragma unroll
  for (int j = 0; j < 4; ++j) {
    d[j] = Numbers::weights(words, step, j / 2, j % 2, scales[j % 2]);
  }
}

// Sets the fields of a row's scale that are the same for all groups. row: as in QuantNumbers.
template <PackedKind kKind, typename Scale>
__device__ __forceinline__ void set_codes(const QuantCodes& codes, int row, Scale& scale) {
  if constexpr (kKind == PackedKind::kTable) {
    scale.set_codes(codes);
  } else {
    scale.set_zero(QuantNumbers<kKind>::zero_of(row, codes.zero_point));
  }
}

}  // namespace warprow::cuda
