// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/progress_word.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// One direction between two ranks in shared memory: two slots used in turn, and how many chunks were sent and taken.
// The sender has one object over the memory and the receiver another.
//
// Owns: nothing; the memory starts as zeros and outlives it.
// Thread: one.
class PairChannel {
 public:
  static size_t bytes(size_t slot_bytes) { return 2 * sizeof(ProgressWord) + 2 * slot_bytes; }

  PairChannel(std::byte* memory, size_t slot_bytes)
      : words_(reinterpret_cast<ProgressWord*>(memory)),
        slots_(memory + 2 * sizeof(ProgressWord)),
        slot_bytes_(slot_bytes) {}

  // The slot of the next chunk: for the sender once it is free, for the receiver once it is filled. Null if `waiting`
  // gave up.
  [[nodiscard]] std::byte* slot_to_fill(Waiting& waiting) {
    return waiting.until(taken(), passed_ - 1) ? slot() : nullptr;
  }
  [[nodiscard]] const std::byte* slot_to_take(Waiting& waiting) {
    return waiting.until(sent(), passed_ + 1) ? slot() : nullptr;
  }
  // Passes the slot to the other side.
  void mark_sent() { sent().advance_to(++passed_); }
  void mark_taken() { taken().advance_to(++passed_); }

 private:
  ProgressWord& sent() { return words_[0]; }
  ProgressWord& taken() { return words_[1]; }
  [[nodiscard]] std::byte* slot() const { return slots_ + (passed_ % 2) * slot_bytes_; }

  ProgressWord* words_;  // [2]
  std::byte* slots_;     // [2, slot_bytes]
  size_t slot_bytes_;
  uint32_t passed_ = 0;  // chunks that this side has sent or taken
};

}  // namespace warprow::cpu
