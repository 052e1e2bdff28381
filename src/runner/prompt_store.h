// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/device.h"

#include <cstdint>
#include <span>
#include <vector>

namespace warprow {

// The prefill tokens of every row, in host memory that the device reads in place: a long prompt
// costs no device memory and no upload. A row has as many regions as steps may be in flight and
// uses them in turn, so the host never writes where a step in flight still reads.
//
// Owns: pinned i32 [max_num_seqs * regions_per_row, region_len]. On a CPU pages cost memory when
// first touched; on CUDA all are there from the start.
// Thread: the runner's.
class PromptStore {
 public:
  PromptStore(Device& device, int32_t max_num_seqs, int32_t regions_per_row, int32_t region_len);

  // Stores a new owner's tokens and returns their region. `step` is the step that admits it;
  // `done_step` the last one whose output was taken.
  int32_t put(RowId row, std::span<const TokenId> tokens, int64_t step, int64_t done_step);

  [[nodiscard]] const TokenId* base() const { return tokens_.as<TokenId>(); }
  [[nodiscard]] int64_t region_stride() const { return region_len_; }

 private:
  struct Use {
    int32_t next = 0;            // region of the next owner, within the row's
    int64_t admitted_step = -1;  // of the present owner: the one before it ended no later than this
  };
  int32_t regions_per_row_;
  int32_t region_len_;
  std::vector<Use> uses_;  // [max_num_seqs]
  PinnedBuffer tokens_;
};

}  // namespace warprow
