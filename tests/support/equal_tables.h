// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace warprow::test {

// BlockTableView::begins for rows whose block tables are all `width` cells long.
inline std::vector<int32_t> equal_begins(int64_t num_rows, int64_t width) {
  std::vector<int32_t> begins(static_cast<size_t>(num_rows));
  for (size_t row = 0; row < begins.size(); ++row) {
    begins[row] = static_cast<int32_t>(static_cast<int64_t>(row) * width);
  }
  return begins;
}

}  // namespace warprow::test
