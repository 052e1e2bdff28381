// SPDX-License-Identifier: Apache-2.0
#include "kernels/logits/cap_logits_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {
namespace {

inline VecF capped_logits(VecF x, float divisor, float cap) {
  const VecF v = x / divisor;
  if (cap == 0.0F) {
    return v;
  }
  // tanh(u) = 1 - 2 / (e^2u + 1)
  return cap - (2.0F * cap) / (exp(v / cap * 2.0F) + 1.0F);
}

}  // namespace

void WR_ISA_NAME(cap_logits_row)(float* x, int32_t n, float divisor, float cap) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(x + i, capped_logits(load(x + i), divisor, cap));
  }
  if (i < n) {
    store_n(x + i, capped_logits(load_n(x + i, n - i, 0.0F), divisor, cap), n - i);
  }
}

}  // namespace warprow::cpu
