// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/act_view.h"

namespace warprow::cuda {

// y[t, j] = bias[j], or with `add` y[t, j] += bias[j]. Runs before a product that accumulates into y. For a
// bf16 y this is exact if the bias came from bf16, as in checkpoints.
void bias_rows(Stream& stream, const ActView& y, const float* bias, bool add);

}  // namespace warprow::cuda
