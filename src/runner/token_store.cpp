// SPDX-License-Identifier: Apache-2.0
#include "runner/token_store.h"

#include "base/check.h"
#include "base/math.h"

#include <algorithm>
#include <bit>

namespace warprow {

TokenStore::TokenStore(Arena& state,
                       Device& device,
                       const StepLimits& limits,
                       StagedTables& staged) {
  const TokenPages pool = limits.token_pool();
  WR_CHECK(std::has_single_bit(static_cast<uint32_t>(pool.page_size)),
           "pages of {} tokens; a power of two is needed",
           pool.page_size);
  const int64_t num_cells = int64_t{pool.num_pages} * pool.page_size;
  prefill_ = device.make_pinned(static_cast<size_t>(num_cells) * sizeof(TokenId));
  tokens_.pages_per_row = ceil_div(limits.max_row_len(), pool.page_size);
  const int64_t num_entries = int64_t{limits.max_num_seqs} * tokens_.pages_per_row;
  int32_t* table = state.alloc<int32_t>(num_entries);
  tokens_.pages = table;
  tokens_.prefill = prefill_.as<TokenId>();
  tokens_.later = state.alloc<int32_t>(num_cells);
  tokens_.page_shift = std::countr_zero(static_cast<uint32_t>(pool.page_size));
  row_pages_.resize(static_cast<size_t>(num_entries));
  // All rows share the pool, so no step appends more pages than the pool has.
  table_ = staged.add(table, tokens_.pages_per_row, limits.max_num_seqs, pool.num_pages);
}

std::span<int32_t> TokenStore::pages_of(RowId row) {
  const auto width = static_cast<size_t>(tokens_.pages_per_row);
  return std::span(row_pages_).subspan(static_cast<size_t>(index_of(row)) * width, width);
}

void TokenStore::append(const PageAppend& append,
                        std::span<const PageId> pages,
                        StagedWrites& staged) {
  WR_CHECK_LE(append.start + static_cast<int64_t>(pages.size()), tokens_.pages_per_row);
  const auto count = static_cast<int32_t>(pages.size());
  const std::span<int32_t> cells = staged.stage(table_, append.row, append.start, count);
  std::ranges::transform(pages, cells.begin(), [](PageId page) { return index_of(page); });
  std::ranges::copy(cells.first(pages.size()),
                    pages_of(append.row).subspan(static_cast<size_t>(append.start)).begin());
}

void TokenStore::put_prefill(RowId row, std::span<const TokenId> tokens) {
  auto* const cells = prefill_.as<TokenId>();
  const int32_t page_size = 1 << tokens_.page_shift;
  const auto len = static_cast<int32_t>(tokens.size());
  WR_CHECK_LE(len, page_size * tokens_.pages_per_row);
  for (int32_t first = 0; first < len; first += page_size) {
    const auto page = static_cast<size_t>(first >> tokens_.page_shift);
    TokenId* to = cells + (int64_t{pages_of(row)[page]} << tokens_.page_shift);
    std::copy_n(tokens.begin() + first, std::min(page_size, len - first), to);
  }
}

std::span<const TokenId> TokenStore::prefill_run(RowId row,
                                                 int32_t position,
                                                 int32_t max_count) const {
  const int32_t page_size = 1 << tokens_.page_shift;
  const int32_t in_page = page_size - position % page_size;
  const int64_t entry = int64_t{index_of(row)} * tokens_.pages_per_row + position / page_size;
  const int64_t page = row_pages_[static_cast<size_t>(entry)];
  return {tokens_.prefill + page * page_size + position % page_size,
          static_cast<size_t>(std::min(in_page, max_count))};
}

}  // namespace warprow
