// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/hd.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The block tables of all rows in one pool of cells. The cells of a row are contiguous; they can move as the
// row grows, which changes its begin.
struct BlockTableView {
  const int32_t* cells = nullptr;   // dev i32 [num_cells] kernel block ids
  const int32_t* begins = nullptr;  // dev i32 [max_num_seqs, begin_stride] first cell of a row
  int32_t num_cells = 0;
  int32_t begin_stride = 1;

  [[nodiscard]] WR_HD int32_t begin_of(int64_t row) const { return begins[row * begin_stride]; }
  [[nodiscard]] WR_HD const int32_t* of_row(int64_t row) const { return cells + begin_of(row); }
};

// One layer's part of the paged KV cache. Kernels use the strides and do not depend on a named layout:
// element d of the key of (kernel block b, offset o, head h) is k[b * block_stride + h * head_stride + o *
// token_stride + d]; the same for values. Strides are in elements; a head's elements are contiguous. Of an 8-bit cache
// an element times the scale of its KV head is the number.
struct KvLayerView {
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  DType dtype = DType::kF32;  // kF32, kBF16, kF8E4M3 or kF8E5M2
  int32_t block_size = 16;    // tokens in a kernel block
  int32_t num_kv_heads = 0;
  int32_t head_dim_k = 0;
  int32_t head_dim_v = 0;
  int64_t block_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  const float* k_scales = nullptr;  // dev f32 [num_kv_heads], with an 8-bit dtype
  const float* v_scales = nullptr;
};

}  // namespace warprow
