// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/act_and_mul_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline VecF silu_times(VecF gate, VecF up) { return gate / (1.0F + exp(-gate)) * up; }

inline VecF gelu_times(VecF gate, VecF up) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
  const VecF twice_u = kTwoRootTwoOverPi * gate * (1.0F + 0.044715F * gate * gate);
  return gate / (1.0F + exp(-twice_u)) * up;
}

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

void WR_ISA_NAME(sigmoid_mul_row)(const float* gate, int32_t n, float* y) {
  for_row(gate, y, n, y, [](VecF g, VecF value) { return value / (1.0F + exp(-g)); });
}

void WR_ISA_NAME(clamped_swiglu_row)(
    const float* gate, const float* up, int32_t n, float limit, float* out) {
  const VecF limits = splat(limit);
  for_row(gate, up, n, out, [limits](VecF g, VecF u) { return clamped_swiglu(g, u, limits); });
}

}  // namespace warprow::cpu
