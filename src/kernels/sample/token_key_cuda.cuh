// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/sample_row_cuda.cuh"

#include <cstdint>

namespace warprow::cuda {

// A sort key of a token: ascending keys are descending values, then ascending ids. Not for NaN.
using TokenKey = unsigned long long;

__device__ __forceinline__ TokenKey token_key(float value, int32_t id) {
  return static_cast<TokenKey>(~ordered(value)) << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ int32_t key_id(TokenKey key) { return static_cast<int32_t>(key); }
__device__ __forceinline__ float key_value(TokenKey key) {
  return from_ordered(~static_cast<uint32_t>(key >> 32));
}

}  // namespace warprow::cuda
