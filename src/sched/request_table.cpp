// SPDX-License-Identifier: Apache-2.0
#include "sched/request_table.h"

#include "base/check.h"

namespace warprow {

int32_t RequestTable::add(uint64_t id) {
  if (free_.empty()) {
    free_.push_back(static_cast<int32_t>(slots_.size()));
    slots_.emplace_back();
  }
  const int32_t index = free_.back();
  const bool is_new = index_of_id_.emplace(id, index).second;
  WR_CHECK(is_new, "request id {} is in use", id);
  free_.pop_back();
  (*this)[index].id = id;
  return index;
}

void RequestTable::remove(int32_t index) {
  index_of_id_.erase((*this)[index].id);
  // 0 is no arrival number, so results in flight no longer match the request.
  (*this)[index].arrival = 0;
  (*this)[index].embeds.reset();
  free_.push_back(index);
}

int32_t RequestTable::find(uint64_t id) const {
  const auto it = index_of_id_.find(id);
  return it == index_of_id_.end() ? -1 : it->second;
}

void RequestList::insert_after(int32_t before, int32_t index) {
  const int32_t after = before < 0 ? head_ : table_[before].next;
  table_[index].prev = before;
  table_[index].next = after;
  (before < 0 ? head_ : table_[before].next) = index;
  (after < 0 ? tail_ : table_[after].prev) = index;
  ++size_;
}

void RequestList::erase(int32_t index) {
  const int32_t before = table_[index].prev;
  const int32_t after = table_[index].next;
  (before < 0 ? head_ : table_[before].next) = after;
  (after < 0 ? tail_ : table_[after].prev) = before;
  --size_;
}

}  // namespace warprow
