// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/driver.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <cuda.h>

namespace warprow::cuda {

// A tensor of N dimensions for TMA. TMA moves rows of 128 bytes, or with another swizzle of 64, swizzled as the tensor
// cores read them, or without swizzle rows of any size. Loads fill with zeros beyond the ends, stores write nothing there.
//
// Dimensions go from the innermost outwards; strides are bytes and leave the innermost out. box: the elements that
// one copy moves, a row in the innermost dimension. promotion: how much the L2 cache fetches on a miss.
template <size_t N>
CUtensorMap tensor_map(const void* base,
                       const std::array<uint64_t, N>& dims,
                       const std::array<uint64_t, N - 1>& strides,
                       const std::array<uint32_t, N>& box,
                       CUtensorMapL2promotion promotion,
                       CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                       CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B) {
  std::array<uint32_t, N> every{};
  every.fill(1);
  CUtensorMap map;
  WR_CU(driver().encode_tiled(&map,
                              type,
                              N,
                              const_cast<void*>(base),
                              dims.data(),
                              strides.data(),
                              box.data(),
                              every.data(),
                              CU_TENSOR_MAP_INTERLEAVE_NONE,
                              swizzle,
                              promotion,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

}  // namespace warprow::cuda
