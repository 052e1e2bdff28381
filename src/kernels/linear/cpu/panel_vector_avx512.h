// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vectors of panel_access.h for AVX-512 (F, BW, VL, DQ, VNNI), beside AMX too; those of panel_bf16.h alone for AVX-512
// with vdpbf16ps, its dot product of bf16 pairs.
#include <immintrin.h>

#if !defined(__clang__)
// gcc 12 warns about the deliberately undefined operands inside its own intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif

#include "kernels/simd/dispatch.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {
namespace {

#if defined(__AVX512BF16__) && !defined(__AMX_INT8__)

struct PanelVector {
  using F = __m512;
  using I = __m512i;
  static constexpr int kDirectRows = 8;
  static constexpr int kDirectTile = 8;
  static constexpr int kFloatRows = 6;  // 24 accumulators of 32 registers
  static constexpr int kFloatPanels = 2;
  static constexpr bool kDotsPairs = true;

  static F zero() { return _mm512_setzero_ps(); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static I load_raw(const void* p) { return _mm512_loadu_si512(p); }
  static I load_dword(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
  }
  // Inline assembly with the accumulator in place: gcc 12 moves and spills accumulators around the intrinsic.
  static F dot2(F acc, I w, I x) {
    asm("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(w), "v"(x));
    return acc;
  }
};

#else

struct PanelVector {
  static constexpr const char* kName = "avx512";
  static constexpr int64_t kBlockRows = 512;
  using F = __m512;
  using I = __m512i;
  static constexpr int kDirectRows = 8;
  static constexpr int kDirectQ4Rows = 24;
  static constexpr int kDirectTile = 8;
  static constexpr int kIntRows = 6;  // 12 integer and 12 float accumulators of 32 registers
  static constexpr int kIntPanels = 2;
  static constexpr int kFloatRows = 6;  // 24 accumulators
  static constexpr int kFloatPanels = 2;
  static constexpr bool kDotsPairs = false;
  static constexpr bool kOffsetWeights = true;
  static constexpr bool kQuantisesFour = true;

  static F zero() { return _mm512_setzero_ps(); }
  static F set1(float f) { return _mm512_set1_ps(f); }
  static F load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, F v) { _mm512_storeu_ps(p, v); }
  static F load_bytes_f32(const std::byte* p) { return _mm512_loadu_ps(p); }
  static F load_half(const std::byte* p) { return _mm512_cvtph_ps(load_256(p)); }
  static F load_s8(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(bytes));
  }
  // Powers of two from float32's exponent fields; 0 is zero.
  static F load_powers(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu8_epi32(bytes), 23));
  }
  static F low_bf16(I pair) { return _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16)); }
  static F high_bf16(I pair) {
    return _mm512_castsi512_ps(_mm512_and_si512(pair, _mm512_set1_epi32(-0x10000)));
  }
  static F add(F a, F b) { return _mm512_add_ps(a, b); }
  static F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }

  // Adds the products of bf16 pairs, the odd inputs' first.
  static F dot2(F acc, I w, I x) {
    acc = fma(high_bf16(w), high_bf16(x), acc);
    return fma(low_bf16(w), low_bf16(x), acc);
  }

  static I zero_int() { return _mm512_setzero_si512(); }
  static I set1_s32(int32_t v) { return _mm512_set1_epi32(v); }
  static I add_s32(I a, I b) { return _mm512_add_epi32(a, b); }
  static F to_float(I v) { return _mm512_cvtepi32_ps(v); }
  static I load_raw(const void* p) { return _mm512_loadu_si512(p); }
  static void store_raw(void* p, I v) { _mm512_storeu_si512(p, v); }
#if defined(__AVX512BF16__)
  // Rounds first and then second to 32 bf16.
  static void store_bf16(void* p, F first, F second) {
    const __m512bh both = _mm512_cvtne2ps_pbh(second, first);
    __builtin_memcpy(p, &both, sizeof both);
  }
#endif

  template <int kByte>
  static F byte_to_float(I v) {
    return _mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(v, 24 - 8 * kByte), 24));
  }
  // Decodes by a permute, which reads only the low four bits of each dword, so that no mask is needed.
  static F nibble_decoder(int32_t zero_point) {
    const I index = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(index, _mm512_set1_epi32(zero_point)));
  }
  template <int kShift>
  static F nibble_to_float(I v, F decoder) {
    return _mm512_permutexvar_ps(_mm512_srli_epi32(v, kShift), decoder);
  }

  static I low_nibbles(I v) { return _mm512_and_si512(v, _mm512_set1_epi8(15)); }
  static I high_nibbles(I v) {
    return _mm512_and_si512(_mm512_srli_epi16(v, 4), _mm512_set1_epi8(15));
  }
  // A byte's number e2m1 in its low four bits, others zero -> 2 * number + 12, in 0 .. 24.
  static I e2m1_codes(I v) {
    const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), v);
  }
  // The numbers of a table, for look_up: of each byte's low four bits, others zero, the number at that place.
  static I load_numbers(const int8_t* numbers) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
  }
  static I look_up(I table, I v) { return _mm512_shuffle_epi8(table, v); }
  // v | ((plane << kLeft) & kMask), in each dword.
  template <int kLeft, uint32_t kMask>
  static I add_bits(I v, I plane) {
    const I moved = kLeft >= 0 ? _mm512_slli_epi32(plane, kLeft) : _mm512_srli_epi32(plane, -kLeft);
    return _mm512_ternarylogic_epi32(
        v, moved, _mm512_set1_epi32(static_cast<int32_t>(kMask)), 0xf8);
  }
  static I flip_sign_bits(I v) { return _mm512_xor_si512(v, _mm512_set1_epi8(-128)); }
  static I subtract_bytes(I v, int32_t zero_point) {
    return _mm512_sub_epi8(v, _mm512_set1_epi8(static_cast<char>(zero_point)));
  }
  static I load_dword(const int8_t* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm512_set1_epi32(v);
  }
  static I dot4(I acc, I w, I a) { return _mm512_dpbusd_epi32(acc, w, a); }
  // The instruction updates its accumulator in place. gcc 12 gives the intrinsic's result a new register, and
  // then moves and spills a tile's accumulators.
  static I dot4_pinned(I acc, I w, I a) {
#if defined(__clang__)
    return _mm512_dpbusd_epi32(acc, w, a);
#else
    asm("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(w), "v"(a));
    return acc;
#endif
  }

  // The lanes' larger magnitudes by their bit patterns, so that a NaN is the largest.
  static F larger_magnitudes(F a, F b) {
    const I magnitude = _mm512_set1_epi32(0x7fffffff);
    return _mm512_castsi512_ps(
        _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                         _mm512_and_si512(_mm512_castps_si512(b), magnitude)));
  }
  // The largest lane of larger_magnitudes' result.
  static float largest_magnitude(F v) {
    const int32_t bits = _mm512_reduce_max_epi32(_mm512_castps_si512(v));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(bits)));
  }
  // Rounds to nearest even within [-127, 127], stores 16 bytes and returns their sum.
  static int32_t round_to_s8(int8_t* q, F v) {
    const F limited = _mm512_min_ps(_mm512_max_ps(v, set1(-127.0F)), set1(127.0F));
    const I rounded = _mm512_cvtps_epi32(limited);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(rounded));
    return _mm512_reduce_add_epi32(rounded);
  }

  // The same of 64 floats times a factor.
  static int32_t round_64_to_s8(int8_t* q, const float* x, F factor) {
    return _mm512_reduce_add_epi32(round_64(q, x, {factor, factor, factor, factor}));
  }

  // Int8Panels::quantise_group for four groups, with the same results. A tree over the lanes and a division serve all four.
  template <typename Group>
  static void quantise_four(const float* x, int8_t* q, Group* by32, Group* by16) {
    const I magnitude = _mm512_set1_epi32(0x7fffffff);
    const auto abs_of = [&](int i) {
      return _mm512_and_si512(_mm512_castps_si512(load(x + 16 * i)), magnitude);
    };
    I most[4];
    WR_UNROLL
    for (int g = 0; g < 4; ++g) {
      most[g] = _mm512_max_epi32(abs_of(2 * g), abs_of(2 * g + 1));
    }
    const I amax = four_maxima(most[0], most[1], most[2], most[3]);
    const __m128 largest = _mm_castsi128_ps(first_of_lanes(amax));
    const __mmask8 any = _mm_cmp_ps_mask(largest, _mm_set1_ps(1e-30F), _CMP_NLT_UQ);
    const __m128 most_int = _mm_set1_ps(127.0F);
    const __m128 scale = _mm_maskz_div_ps(any, largest, most_int);
    const F inverse = _mm512_castps128_ps512(_mm_maskz_div_ps(any, most_int, largest));
    I sums[2];  // of 16 inputs, four times each
    WR_UNROLL
    for (int half = 0; half < 2; ++half) {
      F factors[4];
      WR_UNROLL
      for (int i = 0; i < 4; ++i) {
        factors[i] = _mm512_permutexvar_ps(_mm512_set1_epi32(2 * half + i / 2), inverse);
      }
      const I of_four = round_64(q + 64 * half, x + 64 * half, factors);
      const I of_eight = add_s32(of_four, _mm512_shuffle_epi32(of_four, _MM_PERM_BADC));
      sums[half] = add_s32(of_eight, _mm512_shuffle_epi32(of_eight, _MM_PERM_CDAB));
    }
    WR_UNROLL
    for (int half = 0; by16 != nullptr && half < 2; ++half) {
      const __m128 twice =
          half == 0 ? _mm_unpacklo_ps(scale, scale) : _mm_unpackhi_ps(scale, scale);
      store_groups(twice, first_of_lanes(sums[half]), by16 + 4 * half);
    }
    const I of_groups = add_s32(_mm512_shuffle_i32x4(sums[0], sums[1], 0x88),
                                _mm512_shuffle_i32x4(sums[0], sums[1], 0xdd));
    store_groups(scale, first_of_lanes(of_groups), by32);
  }

 private:
  // Rounds 64 floats times factors to bytes; lane i of the result is the sum of bytes 4i .. 4i + 3.
  static I round_64(int8_t* q, const float* x, const F (&factors)[4]) {
    I rounded[4];
    WR_UNROLL
    for (int i = 0; i < 4; ++i) {
      const F v = mul(load(x + 16 * i), factors[i]);
      rounded[i] = _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(v, set1(-127.0F)), set1(127.0F)));
    }
    const I fours = _mm512_packs_epi16(_mm512_packs_epi32(rounded[0], rounded[1]),
                                       _mm512_packs_epi32(rounded[2], rounded[3]));
    const I in_order = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
    const I bytes = _mm512_permutexvar_epi32(in_order, fours);
    store_raw(q, bytes);
    return dot4(zero_int(), _mm512_set1_epi8(1), bytes);
  }
  // Lanes 4i .. 4i + 3 of the result have the largest lane of the i-th argument.
  static I four_maxima(I a, I b, I c, I d) {
    const I ab =
        _mm512_max_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
    const I cd =
        _mm512_max_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
    I all =
        _mm512_max_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
    all = _mm512_max_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_BADC));
    return _mm512_max_epi32(all, _mm512_shuffle_epi32(all, _MM_PERM_CDAB));
  }
  // Lanes 0, 4, 8 and 12.
  static __m128i first_of_lanes(I v) {
    const I index = _mm512_set_epi32(12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0, 12, 8, 4, 0);
    return _mm512_castsi512_si128(_mm512_permutexvar_epi32(index, v));
  }
  template <typename Group>
  static void store_groups(__m128 scale, __m128i sum, Group* groups) {
    static_assert(sizeof(Group) == 12);  // scale, scaled_sum, sum
    const __m128 scaled = _mm_mul_ps(scale, _mm_cvtepi32_ps(sum));
    const I all = _mm512_inserti32x4(
        _mm512_inserti32x4(
            _mm512_castsi128_si512(_mm_castps_si128(scale)), _mm_castps_si128(scaled), 1),
        sum,
        2);
    const I order = _mm512_set_epi32(0, 0, 0, 0, 11, 7, 3, 10, 6, 2, 9, 5, 1, 8, 4, 0);
    const I groups_of_three = _mm512_permutexvar_epi32(order, all);
    auto* to = reinterpret_cast<std::byte*>(groups);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(groups_of_three));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + 32),
                     _mm512_extracti32x4_epi32(groups_of_three, 2));
  }
  static __m256i load_256(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

#endif

}  // namespace
}  // namespace warprow::cpu
