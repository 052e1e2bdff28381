// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/stream.h"
#include "kernels/act_view.h"

namespace warprow::cuda {

// y[t, j] = bias[j], or with `add` y[t, j] += bias[j]: what stands in y before a product that adds
// to it. A bf16 y is exact where the bias came from bf16, as checkpoints have it.
void bias_rows(Stream& stream, const ActView& y, const float* bias, bool add);

}  // namespace warprow::cuda
