// SPDX-License-Identifier: Apache-2.0
#include "layers/random_mxfp4.h"

#include "kernels/random/fill_random.h"
#include "kernels/random/random_e2m1.h"

#include <cmath>

namespace warprow {

void random_e2m1_row(const RandomMxfp4& random, int64_t row, int8_t* q) {
  float quad[4];
  const int64_t first = random.first + row * random.stride;
  for (int64_t i = 0; i < random.cols; ++i) {
    const int64_t element = first + i;
    if (i == 0 || element % 4 == 0) {
      random_quad(random.seed, element / 4, kE2m1Deviation, quad);
    }
    q[i] = static_cast<int8_t>(nearest_e2m1(quad[element % 4]));
  }
}

int random_mxfp4_exponent(const RandomMxfp4& random) {
  return static_cast<int>(std::lround(std::log2(random.scale / kE2m1Deviation)));
}

}  // namespace warprow
