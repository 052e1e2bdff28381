// SPDX-License-Identifier: Apache-2.0
#include "sched/scheduler.h"

namespace warprow {

int32_t Scheduler::next_waiting() {
  const int32_t first = waiting_.front();
  if (adapters_.has_room_for(requests_[first].adapter)) {
    return first;
  }
  if (passed_arrival_ != requests_[first].arrival) {
    passed_arrival_ = requests_[first].arrival;
    num_passed_ = 0;
  }
  int32_t index = requests_[first].next;
  while (index >= 0) {
    const int32_t adapter = requests_[index].adapter;
    if (adapter < 0 || (num_passed_ < kMaxPassed && adapters_.has_room_for(adapter))) {
      break;
    }
    index = requests_[index].next;
  }
  return index;
}

}  // namespace warprow
