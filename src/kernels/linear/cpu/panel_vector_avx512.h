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
  static constexpr int kDirectTile = 8;
  static constexpr int kIntRows = 6;  // 12 integer and 12 float accumulators of 32 registers
  static constexpr int kIntPanels = 2;
  static constexpr int kFloatRows = 6;  // 24 accumulators
  static constexpr int kFloatPanels = 2;
  static constexpr bool kDotsPairs = false;
  static constexpr bool kOffsetWeights = true;

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

  // Compares bit patterns, so that a NaN is the largest.
  static float max_of_abs(F a, F b) {
    const I magnitude = _mm512_set1_epi32(0x7fffffff);
    const I larger = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                      _mm512_and_si512(_mm512_castps_si512(b), magnitude));
    return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(_mm512_reduce_max_epi32(larger))));
  }
  // Rounds to nearest even within [-127, 127], stores 16 bytes and returns their sum.
  static int32_t round_to_s8(int8_t* q, F v) {
    const F limited = _mm512_min_ps(_mm512_max_ps(v, set1(-127.0F)), set1(127.0F));
    const I rounded = _mm512_cvtps_epi32(limited);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm512_cvtsepi32_epi8(rounded));
    return _mm512_reduce_add_epi32(rounded);
  }

 private:
  static __m256i load_256(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

#endif

}  // namespace
}  // namespace warprow::cpu
