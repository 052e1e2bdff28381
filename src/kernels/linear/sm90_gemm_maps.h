// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/sm90_gemm_cuda.h"

#include <cstddef>
#include <cstdint>
#include <cuda.h>

namespace warprow::cuda {

// Tensor map of a bf16 matrix [rows, cols]: boxes of 64 columns, 128-byte swizzle, zeros outside. Made on the
// host; allocates nothing.
CUtensorMap sm90_gemm_map(
    const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box_rows);

}  // namespace warprow::cuda
