// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/row_tokens.h"

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <vector>

namespace warprow::test {

// One row's tokens in pages, which are in reverse order; cells that are not its tokens hold 55. The first num_on_host tokens are
// in host memory alone, the others on the device alone.
struct PagedText {
  PagedText(const std::vector<int32_t>& tokens, int32_t num_on_host, int32_t page_shift)
      : pages(tokens.size() / (size_t{1} << page_shift) + 1),
        prefill(pages.size() << page_shift, 55),
        later(prefill),
        known{pages.data(),
              prefill.data(),
              later.data(),
              static_cast<int32_t>(pages.size()),
              page_shift} {
    std::iota(pages.rbegin(), pages.rend(), 0);
    for (int32_t i = 0; i < std::ssize(tokens); ++i) {
      (i < num_on_host ? prefill : later)[static_cast<size_t>(known.cell(0, i))] =
          tokens[static_cast<size_t>(i)];
    }
  }
  PagedText(const PagedText&) = delete;  // known points into it
  PagedText& operator=(const PagedText&) = delete;

  std::vector<int32_t> pages;
  std::vector<int32_t> prefill;
  std::vector<int32_t> later;
  RowTokens known;
};

}  // namespace warprow::test
