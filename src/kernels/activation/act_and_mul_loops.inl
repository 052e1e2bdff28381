// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/act_and_mul_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline VecF silu_times(VecF gate, VecF up) { return gate / (1.0F + exp(-gate)) * up; }

inline VecF gelu(VecF v) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
  const VecF twice_u = kTwoRootTwoOverPi * v * (1.0F + 0.044715F * v * v);
  return v / (1.0F + exp(-twice_u));
}

#if defined(__AVX512F__)
// Half of erfc(z / sqrt(2)), z >= 0: a polynomial of degree 4 on each of 32 segments of 0.2, in the distance from the
// segment's middle. Taylor's of degree 5 is taken, whose last term is replaced by the one of degree 3 that is next to it
// on the segment (economisation by Chebyshev's polynomials). Within 1e-8; from 6.2 on 0.
struct ErfcTable {
  static constexpr int kSegments = 2 * kLanes;
  static constexpr double kWidth = 0.2;
  float c[5][kSegments];
};

constexpr ErfcTable make_erfc_table() {
  constexpr int kSteps = 64;  // of Simpson's rule, between two middles
  constexpr double kHalf = ErfcTable::kWidth / 2;
  constexpr auto density = [](double z) {
    double sum = 1.0;
    double term = 1.0;
    for (int i = 1; i < 40; ++i) {  // e^-(z^2 / 64), to the power of 32
      term *= -z * z / 64 / i;
      sum += term;
    }
    for (int i = 0; i < 5; ++i) {
      sum *= sum;
    }
    return sum * 0.398942280401432678;
  };
  constexpr auto integral = [=](double from, double to) {
    const double step = (to - from) / kSteps;
    double sum = density(from) + density(to);
    for (int i = 1; i < kSteps; ++i) {
      sum += (i % 2 == 0 ? 2 : 4) * density(from + i * step);
    }
    return sum * step / 3;
  };
  ErfcTable table{};
  double tail = 0.5 - integral(0.0, kHalf);
  for (int s = 0; s < ErfcTable::kSegments - 1; ++s) {
    const double z = (2 * s + 1) * kHalf;
    const double d = density(z);
    double c[6] = {tail,
                   -d,
                   d * z / 2,
                   d * (1 - z * z) / 6,
                   d * (z * z * z - 3 * z) / 24,
                   d * (-z * z * z * z + 6 * z * z - 3) / 120};
    c[3] += c[5] * kHalf * kHalf * 20 / 16;
    c[1] -= c[5] * kHalf * kHalf * kHalf * kHalf * 5 / 16;
    for (int i = 0; i < 5; ++i) {
      table.c[i][s] = static_cast<float>(c[i]);
    }
    tail -= integral(z, z + 2 * kHalf);
  }
  return table;
}

constexpr ErfcTable kErfc = make_erfc_table();

inline VecF of_segment(const float (&c)[ErfcTable::kSegments], VecI segment) {
  return _mm512_permutex2var_ps(load(c), reinterpret_cast<__m512i>(segment), load(c + kLanes));
}

// v * (1 - erfc(v / sqrt(2)) / 2), and below 0 v * erfc(-v / sqrt(2)) / 2.
inline VecF exact_gelu(VecF v) {
  const VecF magic = splat(12582912.0F);  // 1.5 * 2^23: adding it rounds to an integer
  const VecF z = max(v, -v);
  // In segments from the middle of the first; NaN takes the last segment and stays NaN.
  const VecF near = -max(fma(z, splat(-5.0F), splat(0.5F)), splat(1.0F - ErfcTable::kSegments));
  const VecF shifted = near + magic;
  const VecI segment = as_int(shifted) - as_int(magic);
  const VecF u = fma(shifted - magic, splat(-0.2F), z - 0.1F);
  VecF tail = of_segment(kErfc.c[4], segment);
  tail = fma(tail, u, of_segment(kErfc.c[3], segment));
  tail = fma(tail, u, of_segment(kErfc.c[2], segment));
  tail = fma(tail, u, of_segment(kErfc.c[1], segment));
  tail = fma(tail, u, of_segment(kErfc.c[0], segment)) * v;
  return v > 0.0F ? v - tail : tail;
}
#else
// v / 2 * (1 + erf(v / sqrt(2))): half of erfc of the distance from 0, which decays without cancellation.
inline VecF exact_gelu(VecF v) {
  constexpr float kRootHalf = 0.70710678118654752F;
  const VecF z = max(v, -v) * kRootHalf;
  const VecF t = 1.0F / fma(z, splat(0.3275911F), splat(1.0F));
  VecF p = splat(0.5F * 1.061405429F);
  p = fma(p, t, splat(0.5F * -1.453152027F));
  p = fma(p, t, splat(0.5F * 1.421413741F));
  p = fma(p, t, splat(0.5F * -0.284496736F));
  p = fma(p, t, splat(0.5F * 0.254829592F));
  const VecF tail = p * t * exp_nonpositive(-z * z) * v;
  return v > 0.0F ? v - tail : tail;
}
#endif

inline VecF gelu_times(VecF gate, VecF up) { return gelu(gate) * up; }

inline VecF min(VecF a, VecF b) { return -max(-a, -b); }

inline VecF clamped_swiglu(VecF gate, VecF up, VecF limit) {
  const VecF g = min(limit, gate);
  const VecF u = max(-limit, min(limit, up));
  return (u + 1.0F) * (g / (1.0F + exp(-1.702F * g)));
}

// Calls act(gate, up) for all n, a vector at a time.
template <typename Act>
inline void for_row(const float* gate, const float* up, int32_t n, float* out, const Act& act) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, act(load(gate + i), load(up + i)));
  }
  if (i < n) {
    const int rest = n - i;
    store_n(out + i, act(load_n(gate + i, rest, 0.0F), load_n(up + i, rest, 0.0F)), rest);
  }
}

}  // namespace

void WR_ISA_NAME(silu_and_mul_row)(const float* gate, const float* up, int32_t n, float* out) {
  for_row(gate, up, n, out, [](VecF g, VecF u) { return silu_times(g, u); });
}

void WR_ISA_NAME(gelu_and_mul_row)(const float* gate, const float* up, int32_t n, float* out) {
  for_row(gate, up, n, out, [](VecF g, VecF u) { return gelu_times(g, u); });
}

void WR_ISA_NAME(exact_gelu_and_mul_row)(const float* gate,
                                         const float* up,
                                         int32_t n,
                                         float* out) {
  for_row(gate, up, n, out, [](VecF g, VecF u) { return exact_gelu(g) * u; });
}

void WR_ISA_NAME(gelu_row)(float* x, int32_t n) {
  for_row(x, x, n, x, [](VecF v, VecF) { return gelu(v); });
}

void WR_ISA_NAME(exact_gelu_row)(float* x, int32_t n) {
  for_row(x, x, n, x, [](VecF v, VecF) { return exact_gelu(v); });
}

void WR_ISA_NAME(sigmoid_mul_row)(const float* gate, int32_t n, float* y) {
  for_row(gate, y, n, y, [](VecF g, VecF value) { return value / (1.0F + exp(-g)); });
}

void WR_ISA_NAME(clamped_swiglu_row)(
    const float* gate, const float* up, int32_t n, float limit, float* out) {
  const VecF limits = splat(limit);
  for_row(gate, up, n, out, [limits](VecF g, VecF u) { return clamped_swiglu(g, u, limits); });
}

}  // namespace warprow::cpu
