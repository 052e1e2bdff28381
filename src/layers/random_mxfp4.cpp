// SPDX-License-Identifier: Apache-2.0
#include "layers/random_mxfp4.h"

#include "kernels/random/fill_random.h"

#include <algorithm>
#include <cmath>

namespace warprow {
namespace {

constexpr float kDeviation = 1.5F;

// Twice the e2m1 number next to v.
int8_t nearest_e2m1(float v) {
  const float twice = 2.0F * std::abs(v);
  const int step = twice < 4.0F ? 1 : twice < 8.0F ? 2 : 4;
  const int rounded =
      std::min(12, static_cast<int>(twice / static_cast<float>(step) + 0.5F) * step);
  return static_cast<int8_t>(v < 0.0F ? -rounded : rounded);
}

}  // namespace

void random_e2m1_row(const RandomMxfp4& random, int64_t row, int8_t* q) {
  float quad[4];
  const int64_t first = random.first + row * random.stride;
  for (int64_t i = 0; i < random.cols; ++i) {
    const int64_t element = first + i;
    if (i == 0 || element % 4 == 0) {
      random_quad(random.seed, element / 4, kDeviation, quad);
    }
    q[i] = nearest_e2m1(quad[element % 4]);
  }
}

int random_mxfp4_exponent(const RandomMxfp4& random) {
  return static_cast<int>(std::lround(std::log2(random.scale / kDeviation)));
}

}  // namespace warprow
