// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>

namespace warprow {

// The index vocabulary (STYLE.md). Ids that cross a room's border are distinct types; inside a
// kernel and in the arrays that kernels read they are plain int32.
enum class RowId : int32_t {};    // persistent request row, 0 .. max_num_seqs - 1
enum class BlockId : int32_t {};  // KV block; 0 is the null block, which no request owns
enum class PageId : int32_t {};   // page of the token pool; 0 is never given out
using TokenId = int32_t;          // an entry of the vocabulary

inline constexpr RowId kNoRow{-1};
inline constexpr BlockId kNullBlock{0};
inline constexpr int64_t kPadSlot = -1;  // slot of a padding token: nothing is written

// Some models distinguish two segments of a prompt (token types). Inside the engine an id of such a prompt holds its
// segment from this bit on.
inline constexpr int32_t kSegmentShift = 24;
inline constexpr TokenId kIdBits = (1 << kSegmentShift) - 1;

template <typename Id>
WR_HD constexpr int32_t index_of(Id id) {
  return static_cast<int32_t>(id);
}

}  // namespace warprow
