// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/gelu_and_mul_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline VecF gated(VecF gate, VecF up) {
  constexpr float kTwoRootTwoOverPi = 1.5957691216057308F;
  const VecF twice_u = kTwoRootTwoOverPi * gate * (1.0F + 0.044715F * gate * gate);
  return gate / (1.0F + exp(-twice_u)) * up;
}

}  // namespace

void WR_ISA_NAME(gelu_and_mul_row)(const float* gate, const float* up, int32_t n, float* out) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, gated(load(gate + i), load(up + i)));
  }
  if (i < n) {
    const int rest = n - i;
    store_n(out + i, gated(load_n(gate + i, rest, 0.0F), load_n(up + i, rest, 0.0F)), rest);
  }
}

}  // namespace warprow::cpu
