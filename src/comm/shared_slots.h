// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/communicator.h"
#include "comm/progress_word.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Places in shared memory through which the ranks of a group hand data to each other, chunk by chunk. Each rank has
// two slots, used in turn, and a count of what it has published. A chunk is, on every rank:
//
//   turn();                    // to the other slot
//   claim(); write slot(me);   // ranks that write in this chunk
//   publish();                 // all ranks; also says that this rank is done with the chunk before
//   wait_for(r); read slot(r); // ranks that read
//
// publish, wait and read may be repeated within a chunk; then a rank writes only what no rank reads any more. As slots
// alternate, a chunk needs no barrier at its end: claim() waits until all ranks are past the last use of the slot,
// which they are almost always.
//
// Owns: nothing; the memory starts as zeros and outlives it.
// Thread: one a rank.
// Invariant: all ranks make the same sequence of turn and publish.
class SharedSlots {
 public:
  // Memory of a group, and the alignment that it needs.
  static size_t bytes(int32_t size, size_t slot_bytes);
  static constexpr size_t kAlignment = alignof(ProgressWord);

  SharedSlots(std::byte* memory, GroupPlace place, size_t slot_bytes);

  [[nodiscard]] size_t slot_bytes() const { return slot_bytes_; }
  [[nodiscard]] std::byte* slot(int32_t rank) const;

  void turn() { turn_ ^= 1; }
  // The waits return false if `waiting` gave up.
  using Deadline = std::optional<Waiting::Clock::time_point>;
  [[nodiscard]] bool claim(Waiting& waiting, Deadline deadline = {});
  void publish();
  [[nodiscard]] bool wait_for(int32_t rank, Waiting& waiting, Deadline deadline = {});
  [[nodiscard]] bool wait_for_all(Waiting& waiting, Deadline deadline = {});
  // Whether the rank has published as often as this one.
  [[nodiscard]] bool arrived(int32_t rank) const { return words_[rank].reached(published_); }

 private:
  [[nodiscard]] bool wait_for_all(uint32_t count, Waiting& waiting, Deadline deadline);

  GroupPlace place_;
  size_t slot_bytes_;
  ProgressWord* words_;  // [size]
  std::byte* slots_;     // [size, 2, slot_bytes]
  int32_t turn_ = 0;
  uint32_t published_ = 0;
  uint32_t free_at_[2] =
      {};  // of each turn's slots: the count by which a rank is past their last use
};

}  // namespace warprow
