// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/philox.h"

#include <cmath>

namespace warprow {

// A standard Gumbel sample from 32 random bits: -log(-log(1 - u)), u uniform in (0, 1). The largest samples
// decide the draw. They come from the smallest u, where the float cells are finest (1 - u is as uniform as
// u).
WR_HD inline double gumbel_noise(uint32_t bits) { return -log(-log1p(-uniform_open(bits))); }

// The score that the draw maximises over the surviving tokens. The lowest id wins a tie.
WR_HD inline double gumbel_score(float x, const RandomKey& key, int32_t token) {
  return static_cast<double>(x) + gumbel_noise(random_bits(key, static_cast<uint32_t>(token)));
}

}  // namespace warprow
