// SPDX-License-Identifier: Apache-2.0
#pragma once

// Vectors of floats as wide as the including file's instruction set: 16 lanes with AVX-512, 8 with AVX2, else
// 4. A hot loop is written once with these vectors (`<op>_loops.inl`) and compiled once for each set.
//
// Everything here is in an unnamed namespace, and this file includes nothing but macros, <cstdint> and intrinsics:
// the linker could keep the AVX-512 copy of a function with external linkage for the whole program.

#include "kernels/simd/dispatch.h"

#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace warprow::cpu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

typedef float VecF __attribute__((vector_size(kLanes * 4)));
typedef int32_t VecI
    __attribute__((vector_size(kLanes * 4)));  // also a mask: -1 is true, 0 is false
typedef uint32_t VecU __attribute__((vector_size(kLanes * 4)));
typedef uint64_t VecU64 __attribute__((vector_size(kLanes * 4)));
typedef uint16_t VecH __attribute__((vector_size(kLanes * 2)));

constexpr float kInfinity = __builtin_inff();

template <typename V, typename T>
inline V load_as(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof(v));
  return v;
}
inline VecF load(const float* p) { return load_as<VecF>(p); }
template <typename V, typename T>
inline void store(T* p, V v) {
  __builtin_memcpy(p, &v, sizeof(v));
}
// Loads the first n lanes and sets the others to `fill`; store_n stores only the first n. n < kLanes.
inline VecF load_n(const float* p, int n, float fill) {
  VecF v = fill - VecF{};
  __builtin_memcpy(&v, p, static_cast<unsigned>(n) * sizeof(float));
  return v;
}
inline void store_n(float* p, VecF v, int n) {
  __builtin_memcpy(p, &v, static_cast<unsigned>(n) * sizeof(float));
}

inline VecF splat(float x) { return x - VecF{}; }
inline VecI splat(int32_t x) { return x - VecI{}; }
inline VecU splat(uint32_t x) { return x - VecU{}; }
inline VecF as_float(VecI v) { return reinterpret_cast<VecF>(v); }
inline VecI as_int(VecF v) { return reinterpret_cast<VecI>(v); }

// a * b + c, with one rounding if the instruction set has fused multiply-add.
inline VecF fma(VecF a, VecF b, VecF c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}
// A NaN in a is lost, a NaN in b is kept.
inline VecF max(VecF a, VecF b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(0xffff, a, b);  // g++ 12 warns in the plain form's header
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}
// Bit i is lane i of a mask.
inline uint32_t mask_bits(VecI mask) {
#if defined(__AVX512DQ__)
  return _mm512_movepi32_mask(reinterpret_cast<__m512i>(mask));
#elif defined(__AVX2__)
  return static_cast<uint32_t>(_mm256_movemask_ps(reinterpret_cast<__m256>(mask)));
#elif defined(__SSE2__)
  return static_cast<uint32_t>(_mm_movemask_ps(reinterpret_cast<__m128>(mask)));
#else
  uint32_t bits = 0;
  for (int i = 0; i < kLanes; ++i) {
    bits |= static_cast<uint32_t>(mask[i] & 1) << i;
  }
  return bits;
#endif
}
// 32 x 32 -> 64 bit products of the even lanes.
inline VecU64 mul_even(VecU a, VecU b) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecU64>(
      _mm512_maskz_mul_epu32(0xff, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecU64>(
      _mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<VecU64>(
      _mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  const VecU64 low = VecU64{} + 0xffffffffULL;
  return (reinterpret_cast<VecU64>(a) & low) * (reinterpret_cast<VecU64>(b) & low);
#endif
}

template <int... I>
struct Indices {};
template <int N, int... I>
struct MakeIndices : MakeIndices<N - 1, N - 1, I...> {};
template <int... I>
struct MakeIndices<0, I...> {
  using Type = Indices<I...>;
};
using LaneIndices = typename MakeIndices<kLanes>::Type;

template <typename V, int... I>
inline V zip_low(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (I / 2 + (I % 2) * kLanes)...);
}
template <typename V, int... I>
inline V zip_high(V a, V b, Indices<I...>) {
  return __builtin_shufflevector(a, b, (kLanes / 2 + I / 2 + (I % 2) * kLanes)...);
}
// Takes runs of U lanes in turn from a and b: run r of a, then run r of b, for even r (Odd: odd r).
template <int U, int Odd, int... I>
inline VecF runs(VecF a, VecF b, Indices<I...>) {
  return __builtin_shufflevector(
      a, b, ((I / (2 * U)) * (2 * U) + Odd * U + I % U + ((I / U) % 2) * kLanes)...);
}
struct AddLanes {
  VecF operator()(VecF a, VecF b) const { return a + b; }
};
struct MaxLanes {
  VecF operator()(VecF a, VecF b) const { return max(a, b); }
};
// op of run r of a and run r + 1, and the same of b, for even r: one step of a tree over the lanes of each.
template <int U, typename Op>
inline VecF join_runs(VecF a, VecF b, Op op) {
  return op(runs<U, 0>(a, b, LaneIndices{}), runs<U, 1>(a, b, LaneIndices{}));
}
template <int U>
inline VecF fold(VecF a, VecF b) {
  return join_runs<U>(a, b, AddLanes{});
}
// The sum of two runs of two lanes, first of a and then of b, for each four lanes.
inline VecF fold_pair(VecF a, VecF b) {
#if defined(__AVX2__) && !defined(__AVX512F__)
  // Adds lanes 0 and 2, 1 and 3 of each half: one shuffle an operand, where neighbours take two.
  return _mm256_unpacklo_ps(a, b) + _mm256_unpackhi_ps(a, b);
#else
  return fold<1>(a, b);
#endif
}
// Of four vectors v: lane 4i + j of the result is the sum of v[j] over its lanes 4i .. 4i + 3, by a fixed tree.
inline VecF sum_four(const VecF* v) {
  return fold<2>(fold_pair(v[0], v[1]), fold_pair(v[2], v[3]));
}
// Ends the sums of kLanes vectors, of which `fours` has those of every four.
inline VecF sum_fours(const VecF (&fours)[kLanes / 4]) {
  if constexpr (kLanes >= 16) {
    return fold<8>(fold<4>(fours[0], fours[1]), fold<4>(fours[2], fours[3]));
  } else if constexpr (kLanes >= 8) {
    return fold<4>(fours[0], fours[1]);
  } else {
    return fours[0];
  }
}
// Lane j of the result is the sum over the lanes of v[j], by a fixed tree.
inline VecF sum_each(const VecF (&v)[kLanes]) {
  VecF fours[kLanes / 4];
  WR_UNROLL
  for (int i = 0; i < kLanes / 4; ++i) {
    fours[i] = sum_four(v + 4 * i);
  }
  return sum_fours(fours);
}

// Lane i of the result is lane i ^ N.
template <int N, int... I>
inline VecF swap(VecF v, Indices<I...>) {
  return __builtin_shufflevector(v, v, (I ^ N)...);
}
// A fixed tree over the lanes: each of the lower half with one of the upper half, and so on.
template <typename Op>
inline float tree_of_lanes(VecF v, Op op) {
  if constexpr (kLanes >= 16) {
    v = op(v, swap<8>(v, LaneIndices{}));
  }
  if constexpr (kLanes >= 8) {
    v = op(v, swap<4>(v, LaneIndices{}));
  }
  v = op(v, swap<2>(v, LaneIndices{}));
  v = op(v, swap<1>(v, LaneIndices{}));
  return v[0];
}
inline float sum_lanes(VecF v) { return tree_of_lanes(v, AddLanes{}); }
inline float max_lanes(VecF v) { return tree_of_lanes(v, MaxLanes{}); }

// The same trees for kLanes / 4 vectors at once: lanes 4i .. 4i + 3 have the result of v[i].
constexpr int kTrees = kLanes / 4;
template <int... I>
inline VecF first_of_fours(VecF v, Indices<I...>) {
  return __builtin_shufflevector(v, v, (I / 4 * 4)...);
}
template <typename Op>
inline VecF trees_of_lanes(const VecF (&v)[kTrees], Op op) {
  VecF fours;
  if constexpr (kLanes >= 16) {
    fours = join_runs<4>(join_runs<8>(v[0], v[2], op), join_runs<8>(v[1], v[3], op), op);
  } else if constexpr (kLanes >= 8) {
    fours = join_runs<4>(v[0], v[1], op);
  } else {
    fours = v[0];
  }
  fours = op(fours, swap<2>(fours, LaneIndices{}));
  fours = op(fours, swap<1>(fours, LaneIndices{}));
  return first_of_fours(fours, LaneIndices{});
}

// e^x within 2 ulp. Below -87.33 it is 0 and above 88.37 infinity (half a binade at either end is given up
// for speed). NaN stays NaN. Method: x = n ln 2 + r, |r| <= ln 2 / 2; Taylor's series of e^r to r^7 (the
// remainder is below 2^-27); n goes into the exponent. exp_nonpositive, for x <= 0, saves the check of the
// upper end.
inline VecF exp_nonpositive(VecF x) {
  const VecF magic = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF shifted = fma(x, splat(1.44269504088896341F), magic);
  const VecF n = shifted - magic;
  // ln 2 is subtracted in two parts; the first has so few bits that n times it is exact.
  VecF r = fma(n, splat(-0.693359375F), x);
  r = fma(n, splat(2.12194440054690583e-4F), r);
  VecF p = splat(1.0F / 5040);
  p = fma(p, r, splat(1.0F / 720));
  p = fma(p, r, splat(1.0F / 120));
  p = fma(p, r, splat(1.0F / 24));
  p = fma(p, r, splat(1.0F / 6));
  p = fma(p, r, splat(0.5F));
  p = fma(p, r * r, r) + 1.0F;
  const VecI exponent = (as_int(shifted) - as_int(magic) + 127) << 23;
  const VecF y = p * as_float(exponent);
  return x < -87.33F ? splat(0.0F) : y;
}
inline VecF exp(VecF x) { return x > 88.37F ? splat(kInfinity) : exp_nonpositive(x); }

// Converts between the lanes' 32 bits and their lower 16 bits. (g++ 12 compiles __builtin_convertvector to
// several instructions here.)
inline VecI widen(VecH h) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecI>(_mm512_maskz_cvtepu16_epi32(0xffff, reinterpret_cast<__m256i>(h)));
#elif defined(__AVX2__)
  return reinterpret_cast<VecI>(_mm256_cvtepu16_epi32(reinterpret_cast<__m128i>(h)));
#else
  return __builtin_convertvector(h, VecI);
#endif
}
inline VecH narrow(VecU u) {
#if defined(__AVX512F__)
  return reinterpret_cast<VecH>(_mm512_maskz_cvtepi32_epi16(0xffff, reinterpret_cast<__m512i>(u)));
#else
  return __builtin_convertvector(u, VecH);
#endif
}
// bf16 is the upper half of an f32.
inline VecF load_bf16(const uint16_t* p) { return as_float(widen(load_as<VecH>(p)) << 16); }
// Rounds to nearest, ties to even; NaN stays NaN.
inline void store_bf16(uint16_t* p, VecF v) {
  const VecU u = reinterpret_cast<VecU>(v);
  const VecU rounded = (u + 0x7fffU + ((u >> 16) & 1U)) >> 16;
  const VecU quiet = (u >> 16) | 0x40U;
  store(p, narrow(v != v ? quiet : rounded));
}

}  // namespace
}  // namespace warprow::cpu
