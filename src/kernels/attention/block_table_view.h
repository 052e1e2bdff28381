// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

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

}  // namespace warprow
