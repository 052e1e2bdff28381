// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// Tokens of one row, some channels of them: x = silu of the convolution, in place.
struct ConvLoop {
  float* x;  // the first token's
  int64_t x_stride;
  const float* weight;  // [conv_len, weight_stride]
  int64_t weight_stride;
  float* window;  // [conv_len - 1, num_channels] the inputs before; afterwards the last ones
  int32_t conv_len;
  int32_t num_channels;
};

// Tokens of one row and value head.
struct DeltaLoop {
  const float* q;  // normalised and scaled, as k
  const float* k;
  const float* v;
  int64_t stride;  // of q, k and v from one token to the next
  const float* decay;
  const float* beta;
  int64_t gate_stride;
  float* state;  // [key_dim, value_dim]
  float* out;
  int64_t out_stride;
  int32_t key_dim;
  int32_t value_dim;
};

WR_ISA_DECLARE(void, conv_tokens, (const ConvLoop& loop, int64_t num_toks));
WR_ISA_DECLARE(void, delta_tokens, (const DeltaLoop& loop, int64_t num_toks));
// x /= sqrt(|x|^2 + eps), times scale; n values.
WR_ISA_DECLARE(void, l2_normalise, (float* x, int32_t n, float eps, float scale));
// x = x / sqrt(mean(x^2) + eps) * weight * silu(gate), n values.
WR_ISA_DECLARE(void,
               gated_norm,
               (float* x, const float* weight, const float* gate, int32_t n, float eps));

}  // namespace warprow::cpu
