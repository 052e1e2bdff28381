// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

#include <bit>
#include <cstdint>

namespace warprow {

// Scales for an 8-bit KV cache from the keys, or the values, of a step.
//
// Formula: peak = max |x[t, h, d]| over the tokens with a slot and the elements of head h; scales[h] = the least power of two
//   that is at least peak / (most / 2); 1 if the peak is 0 or not finite.
// Shapes: x [T, H * head_dim] (any row stride); slot_mapping [T], -1: padding; scales [H].
// Mapping: CPU: heads in parallel. CUDA: a CTA a head.
// Bytes moved: T * H * head_dim elements read.
// Numerics: exact, since a maximum has no order.
// Preconditions: most is the largest number of the cache's type.
// Origin: own. Scaling by a power of two does not change an element's mantissa. The peak becomes at most half of the largest
//   number, which leaves room for tokens with larger elements than this step's.
struct KvScalesArgs {
  ConstActView x;
  View<const int64_t, 1> slot_mapping;
  View<float, 1> scales;
  float most = 448.0F;
};

WR_OP(kv_scales, KvScalesArgs);

// The scale for a peak.
WR_HD inline float kv_scale_of(float peak, float most) {
  const float wanted = peak * (2.0F / most);
  const auto bits = std::bit_cast<uint32_t>(wanted);
  const uint32_t exponent = (bits + 0x7fffffU) >> 23;  // rounded up
  if (!(wanted > 0.0F) || exponent >= 255U) {
    return 1.0F;
  }
  return std::bit_cast<float>((exponent < 1U ? 1U : exponent) << 23);
}

}  // namespace warprow
