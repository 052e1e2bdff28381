// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// The cosines and sines of the rotary embedding for a step's tokens. They are computed once and read by every
// layer.
//
// Formula: angle = float(positions[t]) * inv_freq[i]; cos[t, i] = scale * cos(angle), sin alike.
// Shapes: positions [T], inv_freq [rot_dim / 2], cos and sin [T, rot_dim / 2].
// Mapping: CPU: tokens in parallel.
// Bytes moved: 8 * T * rot_dim / 2 written.
// Numerics: the angle is a float32 product, as in transformers; its cosine and sine are computed in double,
//   then rounded.
// Preconditions: cos and sin rows are contiguous.
// Origin: Su et al., "RoFormer", 2021; scale is the attention factor of YaRN and LongRoPE.
struct RopeTableArgs {
  View<const int32_t, 1> positions;
  View<const float, 1> inv_freq;
  View<float, 2> cos;
  View<float, 2> sin;
  float scale = 1.0F;
};

WR_OP(rope_table, RopeTableArgs);

}  // namespace warprow
