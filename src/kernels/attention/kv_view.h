// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// One layer's part of the paged KV cache. Kernels use the strides and do not depend on a named layout:
// element d of the key of (kernel block b, offset o, head h) is k[b * block_stride + h * head_stride + o *
// token_stride + d]; the same for values. Strides are in elements; a head's elements are contiguous.
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kF32;  // kF32 or kBF16
  int32_t block_size = 16;    // tokens in a kernel block
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
};

}  // namespace warprow
