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
