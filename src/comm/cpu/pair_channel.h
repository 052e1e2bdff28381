// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/progress_word.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// One direction between two ranks in shared memory: slots used in turn, and how many chunks were sent and taken.
// The sender has one object over the memory and the receiver another.
//
// Owns: nothing; the memory starts as zeros and outlives it.
// Thread: one.
class PairChannel {
 public:
  static size_t bytes(size_t slot_bytes, uint32_t num_slots) {
    return 2 * sizeof(ProgressWord) + num_slots * slot_bytes;
  }

  PairChannel(std::byte* memory, size_t slot_bytes, uint32_t num_slots)
      : words_(reinterpret_cast<ProgressWord*>(memory)),
        slots_(memory + 2 * sizeof(ProgressWord)),
        slot_bytes_(slot_bytes),
        num_slots_(num_slots) {}

  // The slot of the next chunk: for the sender once it is free, for the receiver once it is filled. Null if `waiting`
  // gave up.
  [[nodiscard]] std::byte* slot_to_fill(Waiting& waiting) {
    return waiting.until(taken(), passed_ + 1 - num_slots_) ? slot() : nullptr;
  }
  [[nodiscard]] const std::byte* slot_to_take(Waiting& waiting) {
    return waiting.until(sent(), passed_ + 1) ? slot() : nullptr;
  }
  // Passes the slot to the other side.
  void mark_sent() { sent().advance_to(pass()); }
  void mark_taken() { taken().advance_to(pass()); }

 private:
  ProgressWord& sent() { return words_[0]; }
  ProgressWord& taken() { return words_[1]; }
  [[nodiscard]] std::byte* slot() const { return slots_ + at_ * slot_bytes_; }
  // The next slot is counted apart: passed_ % num_slots_ could skip slots where passed_ wraps around.
  uint32_t pass() {
    at_ = at_ + 1 == num_slots_ ? 0 : at_ + 1;
    return ++passed_;
  }

  ProgressWord* words_;  // [2]
  std::byte* slots_;     // [num_slots, slot_bytes]
  size_t slot_bytes_;
  uint32_t num_slots_;
  uint32_t at_ = 0;      // the slot of the next chunk
  uint32_t passed_ = 0;  // chunks that this side has sent or taken
};

}  // namespace warprow::cpu
