// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/silu_and_mul_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline VecF gated(VecF gate, VecF up) { return gate / (1.0F + exp(-gate)) * up; }

}  // namespace

void WR_ISA_NAME(silu_and_mul_row)(const float* gate, const float* up, int32_t n, float* out) {
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
