// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_slots.h"

#include "base/check.h"

namespace warprow {

size_t SharedSlots::bytes(int32_t size, size_t slot_bytes) {
  return static_cast<size_t>(size) * (sizeof(ProgressWord) + 2 * slot_bytes);
}

SharedSlots::SharedSlots(std::byte* memory, GroupPlace place, size_t slot_bytes)
    : place_(place),
      slot_bytes_(slot_bytes),
      words_(reinterpret_cast<ProgressWord*>(memory)),
      slots_(memory + static_cast<size_t>(place.size) * sizeof(ProgressWord)) {
  WR_CHECK(place.rank >= 0 && place.rank < place.size, "rank {} of {}", place.rank, place.size);
  WR_CHECK_EQ(reinterpret_cast<uintptr_t>(memory) % kAlignment, 0);
  WR_CHECK(slot_bytes > 0 && slot_bytes % kAlignment == 0, "slots of {} bytes", slot_bytes);
}

std::byte* SharedSlots::slot(int32_t rank) const {
  return slots_ + static_cast<size_t>(rank * 2 + turn_) * slot_bytes_;
}

bool SharedSlots::claim(Waiting& waiting, Deadline deadline) {
  return wait_for_all(free_at_[turn_], waiting, deadline);
}

void SharedSlots::publish() {
  words_[place_.rank].advance_to(++published_);
  free_at_[turn_] = published_ + 1;
}

bool SharedSlots::wait_for(int32_t rank, Waiting& waiting, Deadline deadline) {
  return waiting.until(words_[rank], published_, deadline);
}

bool SharedSlots::wait_for_all(Waiting& waiting, Deadline deadline) {
  return wait_for_all(published_, waiting, deadline);
}

bool SharedSlots::wait_for_all(uint32_t count, Waiting& waiting, Deadline deadline) {
  for (int32_t rank = 0; rank < place_.size; ++rank) {
    if (rank != place_.rank && !waiting.until(words_[rank], count, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace warprow
