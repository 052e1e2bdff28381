// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/sm90_gemm_cuda.h"

#include <cstddef>
#include <cstdint>
#include <cuda.h>

namespace warprow::cuda {

// A bf16 matrix [rows, cols] as TMA sees it: boxes of 64 columns, swizzled by 128 bytes,
// zeros outside. Made on the host, nothing is allocated.
CUtensorMap sm90_gemm_map(
    const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box_rows);

}  // namespace warprow::cuda
