// SPDX-License-Identifier: Apache-2.0
#include "runner/prompt_store.h"

#include "base/check.h"

#include <algorithm>

namespace warprow {

PromptStore::PromptStore(Device& device,
                         int32_t max_num_seqs,
                         int32_t regions_per_row,
                         int32_t region_len)
    : regions_per_row_(std::max(2, regions_per_row)),
      region_len_(region_len),
      uses_(static_cast<size_t>(max_num_seqs)),
      tokens_(device.make_pinned(static_cast<size_t>(max_num_seqs) *
                                 static_cast<size_t>(regions_per_row_) *
                                 static_cast<size_t>(region_len) * sizeof(TokenId))) {}

int32_t PromptStore::put(RowId row,
                         std::span<const TokenId> tokens,
                         int64_t step,
                         int64_t done_step) {
  WR_CHECK_LE(tokens.size(), region_len_);
  Use& use = uses_[static_cast<size_t>(index_of(row))];
  // With two regions the owner before the present one wrote here; it was last read by a step before
  // the present owner's admission, which must be over.
  WR_CHECK(use.admitted_step <= done_step + 1,
           "row {} changes owners faster than steps complete",
           index_of(row));
  const int32_t region = index_of(row) * regions_per_row_ + use.next;
  use.next = (use.next + 1) % regions_per_row_;
  use.admitted_step = step;
  std::copy(tokens.begin(),
            tokens.end(),
            tokens_.as<TokenId>() + static_cast<int64_t>(region) * region_len_);
  return region;
}

}  // namespace warprow
