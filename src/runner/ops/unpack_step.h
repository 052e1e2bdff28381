// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/apply_staged_writes.h"

#include <cstdint>

namespace warprow {

// Unpacks a step's upload from the pinned ring, which the device reads in place: the head goes to its fixed buffer,
// staged writes to their tables. One team per piece of the head, then one per staged group. Reading host memory
// costs less than starting a copy.
struct UnpackStep {
  static constexpr int64_t kPieceWords = 256;

  const int32_t* from = nullptr;  // pinned i32 [num_words]
  int32_t* to = nullptr;          // dev i32 [num_words]
  int64_t num_words = 0;
  ApplyStagedWrites staged;  // groups, writes and values pinned

  [[nodiscard]] WR_HD int64_t num_pieces() const {
    return (num_words + kPieceWords - 1) / kPieceWords;
  }

  template <typename Team>
  WR_HD void operator()(int64_t index, const Team& team) const {
    if (index >= num_pieces()) {
      staged(index - num_pieces(), team);
      return;
    }
    const int64_t first = index * kPieceWords;
    const int64_t left = num_words - first;
    team.for_each(left < kPieceWords ? left : kPieceWords,
                  [&](int64_t i) { to[first + i] = from[first + i]; });
  }
};

}  // namespace warprow
