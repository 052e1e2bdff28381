// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <cuda.h>
#include <cuda_runtime_api.h>

namespace warprow::cuda {

// Arguments of one launch of a decode kernel; every instance takes them.
struct XqaLaunch {
  CUtensorMap k_map, v_map;
  const void* q;
  void* out;
  const int32_t* pages;
  const uint32_t* lens;
  uint32_t* arrivals;
  void* partials;
  uint32_t num_rows, num_kv_heads;
  uint32_t max_splits;       // maximum number of CTAs for one row and KV head
  uint32_t tiles_per_split;  // minimum, in tiles of 64 keys
  uint32_t window;           // keys; no less than the longest row: no window
  float q_scale;             // the kernel itself divides by sqrt(head_dim)
  cudaStream_t stream;
};
using XqaFunction = cudaError_t (*)(const XqaLaunch&);

}  // namespace warprow::cuda
