// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// The storage of all rows' tokens, by position, in the row's pages (kv/token_pages.h). Prefill tokens are in
// host memory, later ones (drafts and outputs) on the device. All device code reads and writes known tokens
// through this struct.
struct RowTokens {
  const int32_t* pages = nullptr;    // dev i32 [max_num_seqs, pages_per_row]
  const int32_t* prefill = nullptr;  // pinned i32 [num_pages, 2^page_shift]
  int32_t* later = nullptr;          // dev i32 [num_pages, 2^page_shift]
  int32_t pages_per_row = 0;
  int32_t page_shift = 0;

  // Index of a row's position in `prefill` and in `later`.
  [[nodiscard]] WR_HD int64_t cell(int64_t row, int32_t position) const {
    const int64_t page = pages[row * pages_per_row + (position >> page_shift)];
    return (page << page_shift) + (position & ((1 << page_shift) - 1));
  }
};

}  // namespace warprow
