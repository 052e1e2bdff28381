// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/arena.h"
#include "device/device.h"
#include "kernels/row_tokens.h"
#include "runner/staged_writes.h"
#include "runner/step_limits.h"
#include "wire/scheduler_output.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The known tokens of every row, in pages that the scheduler allocates. A row's prefill lies in host memory that
// the device reads in place: a long prompt costs no device memory and no upload. Drafts and outputs, which the
// device writes, lie in device memory.
//
// Owns: pinned i32 [num_pages, page_size], and the host's copy of the rows' page lists. Device arrays lie
// in the state arena.
// Thread: the runner's.
// Invariant: the scheduler gives a page to a new row only when the steps that may read it are complete, so the host
// may write prompts at once (contracts.md#token-pages). Entries past a row's pages are stale.
class TokenStore {
 public:
  TokenStore(Arena& state, Device& device, const StepLimits& limits, StagedTables& staged);

  void append(const PageAppend& append, std::span<const PageId> pages, StagedWrites& staged);
  // Stores a new row's prefill; the row must have its pages. A token without an id is -1.
  void put_prefill(RowId row, std::span<const TokenId> tokens);

  // The row's prefill tokens from `position` on as far as they are contiguous, at most max_count.
  [[nodiscard]] std::span<const TokenId> prefill_run(RowId row,
                                                     int32_t position,
                                                     int32_t max_count) const;
  // The device's view.
  [[nodiscard]] const RowTokens& tokens() const { return tokens_; }

 private:
  [[nodiscard]] std::span<int32_t> pages_of(RowId row);

  RowTokens tokens_;
  int32_t table_ = -1;              // index in staged writes
  std::vector<int32_t> row_pages_;  // [max_num_seqs, pages_per_row]
  PinnedBuffer prefill_;
};

}  // namespace warprow
