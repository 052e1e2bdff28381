// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"

#include <algorithm>
#include <cstdint>

namespace warprow {

// The pool that holds the tokens of all rows: prompts in pinned host memory, drafts and outputs on the device; a
// token has the same page in both. The scheduler allocates pages, the runner stores and reads through them, and a
// rank's memory plan counts them, so all of them use this arithmetic.
struct TokenPages {
  int32_t page_size = 1024;  // tokens, a power of two
  int32_t num_pages = 0;     // including page 0, which is never given out

  // Pages of a row that has computed num_tokens, with room for one token sampled after them. The last token of a
  // row of maximum length is never computed, so it needs no page for one more.
  [[nodiscard]] int32_t pages_for(int32_t num_tokens) const {
    return ceil_div(num_tokens + 1, page_size);
  }
  [[nodiscard]] int64_t max_tokens() const { return int64_t{num_pages - 1} * page_size; }

  bool operator==(const TokenPages&) const = default;
};

// The most pages that can be used: for all rows at once, each of max_row_len tokens, twice, since an ended row
// keeps its pages until the steps in flight are complete, while the next request may already have the row.
[[nodiscard]] inline TokenPages all_token_pages(int32_t page_size,
                                                int32_t max_num_seqs,
                                                int32_t max_row_len) {
  return {page_size, 1 + 2 * max_num_seqs * ceil_div(max_row_len, page_size)};
}

// The given pool, or if it has no pages the largest useful one.
[[nodiscard]] inline TokenPages token_pages_or_all(const TokenPages& given,
                                                   int32_t max_num_seqs,
                                                   int32_t max_row_len) {
  return given.num_pages > 0 ? given : all_token_pages(given.page_size, max_num_seqs, max_row_len);
}

// Pages for rows that hold at most max_tokens together; each may leave a part of its last page empty. At least
// enough for one row of max_row_len tokens, at most all_token_pages.
[[nodiscard]] inline TokenPages plan_token_pages(int32_t page_size,
                                                 int32_t max_num_seqs,
                                                 int32_t max_row_len,
                                                 int64_t max_tokens) {
  TokenPages pages = all_token_pages(page_size, max_num_seqs, max_row_len);
  const int64_t held =
      ceil_div(std::max<int64_t>(max_tokens, max_row_len), int64_t{page_size}) + max_num_seqs;
  pages.num_pages = static_cast<int32_t>(std::min<int64_t>(pages.num_pages, 1 + held));
  return pages;
}

}  // namespace warprow
