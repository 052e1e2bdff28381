// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace warprow::cuda {

// One launch of a decode kernel; every instance is a function of this.
struct XqaLaunch {
  CUtensorMap k_map, v_map;
  const void* q;
  void* out;
  const int32_t* pages;
  const uint32_t* lens;
  uint32_t* arrivals;
  void* partials;
  uint32_t num_rows, num_kv_heads;
  uint32_t max_splits;       // CTAs for one row and KV head, at most
  uint32_t tiles_per_split;  // of 64 keys, at least
  uint32_t window;           // at least the longest row: none
  float q_scale;             // the kernel divides by sqrt(head_dim) itself
  cudaStream_t stream;
};
using XqaFunction = cudaError_t (*)(const XqaLaunch&);

}  // namespace warprow::cuda
