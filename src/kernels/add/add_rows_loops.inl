// SPDX-License-Identifier: Apache-2.0
#include "kernels/add/add_rows_loops.h"
#include "kernels/simd/vec.h"

namespace warprow::cpu {

void WR_ISA_NAME(add_row)(const float* from, float scale, int64_t n, float* to) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(to + i, load(to + i) + scale * load(from + i));
  }
  for (; i < n; ++i) {
    to[i] += scale * from[i];
  }
}

}  // namespace warprow::cpu
