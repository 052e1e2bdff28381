// SPDX-License-Identifier: Apache-2.0
#pragma once

// The vectors of panel_access.h for AVX2, FMA and F16C, and for AVX-VNNI (__AVXVNNI__), whose int8 path is Int8Panels. A
// 16-lane vector is a pair of registers.
#include <cstddef>
#include <cstdint>
#include <immintrin.h>

namespace warprow::cpu {
namespace {

struct PanelVector {
  static constexpr const char* kName = "avx2";
  static constexpr int64_t kBlockRows = 128;
  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  static constexpr int kDirectRows = 4;
  static constexpr int kDirectTile = 4;
  static constexpr int kShortRows = 3;  // 6 sums of s16, and 6 of floats, of 16 registers
  static constexpr int kFloatRows = 3;  // 12 accumulators of 16 registers
  static constexpr int kFloatPanels = 1;
  static constexpr bool kDotsPairs = false;
  static constexpr bool kQuantisesFour = false;

#if defined(__AVXVNNI__)
  static constexpr int kDirectQ4Rows = 4;
  static constexpr int kIntRows = 5;  // 10 sums of 16 registers; sums of floats are in memory
  static constexpr int kIntPanels = 1;
  static constexpr bool kOffsetWeights = true;

  static I set1_s32(int32_t v) { return {_mm256_set1_epi32(v), _mm256_set1_epi32(v)}; }
  static I flip_sign_bits(I v) {
    const __m256i sign = _mm256_set1_epi8(-128);
    return {_mm256_xor_si256(v.lo, sign), _mm256_xor_si256(v.hi, sign)};
  }
  static I dot4(I acc, I w, __m256i a) {
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, a), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, a)};
  }
  // As in panel_vector_avx512.h.
  static I dot4_pinned(I acc, I w, __m256i a) {
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.lo) : "x"(w.lo), "x"(a));
    asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(acc.hi) : "x"(w.hi), "x"(a));
    return acc;
  }
#endif
  static I zero_int() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F set1(float f) { return {_mm256_set1_ps(f), _mm256_set1_ps(f)}; }
  static F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static void store(float* p, F v) {
    _mm256_storeu_ps(p, v.lo);
    _mm256_storeu_ps(p + 8, v.hi);
  }
  static F load_bytes_f32(const std::byte* p) { return load(reinterpret_cast<const float*>(p)); }
  static F load_half(const std::byte* p) {
    return {_mm256_cvtph_ps(load_128(p)), _mm256_cvtph_ps(load_128(p + 16))};
  }
  static F load_s8(const std::byte* p) {
    const __m128i bytes = load_128(p);
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  // Powers of two from float32's exponent fields; 0 is zero.
  static F load_powers(const std::byte* p) {
    const __m128i bytes = load_128(p);
    const __m128i high = _mm_srli_si128(bytes, 8);
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(bytes), 23)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu8_epi32(high), 23))};
  }
  static F low_bf16(I pair) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(pair.lo, 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(pair.hi, 16))};
  }
  static F high_bf16(I pair) {
    const __m256i mask = _mm256_set1_epi32(-0x10000);
    return {_mm256_castsi256_ps(_mm256_and_si256(pair.lo, mask)),
            _mm256_castsi256_ps(_mm256_and_si256(pair.hi, mask))};
  }
  static F add(F a, F b) { return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)}; }
  static F mul(F a, F b) { return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)}; }
  static F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }

  // Adds the products of bf16 pairs, the odd inputs' first.
  static F dot2(F acc, I w, __m256i x) {
    const I both{x, x};
    acc = fma(high_bf16(w), high_bf16(both), acc);
    return fma(low_bf16(w), low_bf16(both), acc);
  }

  static I add_s32(I a, I b) {
    return {_mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi)};
  }
  static F to_float(I v) { return {_mm256_cvtepi32_ps(v.lo), _mm256_cvtepi32_ps(v.hi)}; }
  static I load_raw(const void* p) {
    const auto* v = static_cast<const __m256i*>(p);
    return {_mm256_loadu_si256(v), _mm256_loadu_si256(v + 1)};
  }
  static void store_raw(void* p, I v) {
    auto* dst = static_cast<__m256i*>(p);
    _mm256_storeu_si256(dst, v.lo);
    _mm256_storeu_si256(dst + 1, v.hi);
  }

  template <int kByte>
  static F byte_to_float(I v) {
    return {byte_lane<kByte>(v.lo), byte_lane<kByte>(v.hi)};
  }
  static __m256i nibble_decoder(int32_t zero_point) { return _mm256_set1_epi32(zero_point); }
  template <int kShift>
  static F nibble_to_float(I v, __m256i zero_point) {
    return {nibble_lane<kShift>(v.lo, zero_point), nibble_lane<kShift>(v.hi, zero_point)};
  }

  static I low_nibbles(I v) {
    const __m256i mask = _mm256_set1_epi8(15);
    return {_mm256_and_si256(v.lo, mask), _mm256_and_si256(v.hi, mask)};
  }
  static I high_nibbles(I v) {
    return low_nibbles({_mm256_srli_epi16(v.lo, 4), _mm256_srli_epi16(v.hi, 4)});
  }
  // A byte's number e2m1 in its low four bits, others zero -> 2 * number + 12, in 0 .. 24.
  static I e2m1_codes(I v) {
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
    return {_mm256_shuffle_epi8(table, v.lo), _mm256_shuffle_epi8(table, v.hi)};
  }
  // The numbers of a table, for look_up: of each byte's low four bits, others zero, the number at that place.
  static I load_numbers(const int8_t* numbers) {
    const __m256i table =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(numbers)));
    return {table, table};
  }
  static I look_up(I table, I v) {
    return {_mm256_shuffle_epi8(table.lo, v.lo), _mm256_shuffle_epi8(table.hi, v.hi)};
  }
  // v | ((plane << kLeft) & kMask), in each dword.
  template <int kLeft, uint32_t kMask>
  static I add_bits(I v, I plane) {
    return {add_bits_lanes<kLeft, kMask>(v.lo, plane.lo),
            add_bits_lanes<kLeft, kMask>(v.hi, plane.hi)};
  }
  static I subtract_bytes(I v, int32_t zero_point) {
    const __m256i zp = _mm256_set1_epi8(static_cast<char>(zero_point));
    return {_mm256_sub_epi8(v.lo, zp), _mm256_sub_epi8(v.hi, zp)};
  }
  // The lower two bytes of each dword as two s16; high_: the upper ones.
  static I low_bytes_to_s16(I v) { return {bytes_to_s16<0>(v.lo), bytes_to_s16<0>(v.hi)}; }
  static I high_bytes_to_s16(I v) { return {bytes_to_s16<2>(v.lo), bytes_to_s16<2>(v.hi)}; }
  static __m256i load_dword(const void* p) {
    int32_t v;
    __builtin_memcpy(&v, p, sizeof v);
    return _mm256_set1_epi32(v);
  }
  // Sums of the products of two neighbours, in s16. w is u8, and s8 in multiply_s8, where a magnitude is at most 128 and
  // that of `a` at most 127, so that a sum, at most 2 * 128 * 127 = 32512, fits.
  static I multiply_u8(I w, __m256i a) {
    return {_mm256_maddubs_epi16(w.lo, a), _mm256_maddubs_epi16(w.hi, a)};
  }
  static I multiply_s8(I w, __m256i a) {
    return {_mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(a, w.lo)),
            _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(a, w.hi))};
  }
  // Inline assembly, so that products are added as they come: gcc makes a tree of the additions of a group, whose products
  // it then spills.
  static I add_s16(I sum, I products) {
    asm("vpaddw %1, %0, %0" : "+x"(sum.lo) : "x"(products.lo));
    asm("vpaddw %1, %0, %0" : "+x"(sum.hi) : "x"(products.hi));
    return sum;
  }
  // The sums of two neighbours, in s32.
  static I widen(I shorts) { return multiply_s16(shorts, _mm256_set1_epi16(1)); }
  // Sums of the products of two neighbours, in s32.
  static I multiply_s16(I w, __m256i a) {
    return {_mm256_madd_epi16(w.lo, a), _mm256_madd_epi16(w.hi, a)};
  }
  static I add_s32_pinned(I sum, I products) {
    asm("vpaddd %1, %0, %0" : "+x"(sum.lo) : "x"(products.lo));
    asm("vpaddd %1, %0, %0" : "+x"(sum.hi) : "x"(products.hi));
    return sum;
  }
  // v - kFactor * *p; kFactor is a power of two, or three times one.
  template <int kFactor>
  static I subtract_times(I v, const int32_t* p) {
    constexpr int kLog = __builtin_ctz(kFactor);
    const __m256i one = _mm256_set1_epi32(*p);
    __m256i product = _mm256_slli_epi32(one, kLog);
    if constexpr (kFactor != 1 << kLog) {
      static_assert(kFactor == 3 << kLog);
      product = _mm256_add_epi32(product, _mm256_slli_epi32(one, kLog + 1));
    }
    return {_mm256_sub_epi32(v.lo, product), _mm256_sub_epi32(v.hi, product)};
  }

  // The lanes' larger magnitudes by their bit patterns, so that a NaN is the largest.
  static F larger_magnitudes(F a, F b) {
    return {_mm256_castsi256_ps(_mm256_max_epi32(magnitude(a.lo), magnitude(b.lo))),
            _mm256_castsi256_ps(_mm256_max_epi32(magnitude(a.hi), magnitude(b.hi)))};
  }
  // The largest lane of larger_magnitudes' result.
  static float largest_magnitude(F v) {
    const __m256i larger = _mm256_max_epi32(_mm256_castps_si256(v.lo), _mm256_castps_si256(v.hi));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(larger), _mm256_extracti128_si256(larger, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtss_f32(_mm_castsi128_ps(m));
  }
  // Rounds to nearest even within [-127, 127], stores 16 bytes and returns their sum.
  static int32_t round_to_s8(int8_t* q, F v) {
    const __m256i lo = rounded(v.lo);
    const __m256i hi = rounded(v.hi);
    const __m128i first =
        _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
    const __m128i second =
        _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), _mm_packs_epi16(first, second));
    const __m256i sums = _mm256_add_epi32(lo, hi);
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
  }

 private:
  static __m256i magnitude(__m256 v) {
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7fffffff));
  }
  static __m256i rounded(__m256 v) {
    const __m256 limit = _mm256_set1_ps(127.0F);
    return _mm256_cvtps_epi32(_mm256_min_ps(_mm256_max_ps(v, _mm256_set1_ps(-127.0F)), limit));
  }
  static __m128i load_128(const std::byte* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  template <int kLeft, uint32_t kMask>
  static __m256i add_bits_lanes(__m256i v, __m256i plane) {
    const __m256i moved =
        kLeft >= 0 ? _mm256_slli_epi32(plane, kLeft) : _mm256_srli_epi32(plane, -kLeft);
    const __m256i mask = _mm256_set1_epi32(static_cast<int32_t>(kMask));
    return _mm256_or_si256(v, _mm256_and_si256(moved, mask));
  }
  template <char kFirst>
  static __m256i bytes_to_s16(__m256i v) {
    constexpr char kNo = -128;
    constexpr char kNext = kFirst + 1;
    const __m256i upper = _mm256_broadcastsi128_si256(_mm_setr_epi8(kNo,
                                                                    kFirst,
                                                                    kNo,
                                                                    kNext,
                                                                    kNo,
                                                                    kFirst + 4,
                                                                    kNo,
                                                                    kNext + 4,
                                                                    kNo,
                                                                    kFirst + 8,
                                                                    kNo,
                                                                    kNext + 8,
                                                                    kNo,
                                                                    kFirst + 12,
                                                                    kNo,
                                                                    kNext + 12));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(v, upper), 8);
  }
  template <int kByte>
  static __m256 byte_lane(__m256i v) {
    return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(v, 24 - 8 * kByte), 24));
  }
  template <int kShift>
  static __m256 nibble_lane(__m256i v, __m256i zero_point) {
    const __m256i nibble = _mm256_and_si256(_mm256_srli_epi32(v, kShift), _mm256_set1_epi32(15));
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(nibble, zero_point));
  }
};

}  // namespace
}  // namespace warprow::cpu
