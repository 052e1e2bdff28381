// SPDX-License-Identifier: Apache-2.0
#include "server/response/update_box.h"

#include <utility>

namespace warprow {

UpdateBox::UpdateBox(size_t num_choices, bool each_update, std::function<void()> wake)
    : slots_(num_choices),
      num_running_(num_choices),
      each_update_(each_update),
      wake_(std::move(wake)) {}

void UpdateBox::push(size_t choice, const RequestUpdate& update) {
  const std::lock_guard lock(mutex_);
  Slot& slot = slots_[choice];
  join_update(slot.news, update);
  slot.filled = true;
  num_running_ -= update.finish_reason == FinishReason::kNone ? 0 : 1;
  if (wake_ && !woken_ && (each_update_ || num_running_ == 0)) {
    woken_ = true;
    wake_();
  }
}

std::vector<std::pair<size_t, RequestUpdate>> UpdateBox::take() {
  std::vector<std::pair<size_t, RequestUpdate>> out;
  const std::lock_guard lock(mutex_);
  woken_ = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].filled) {
      out.emplace_back(i, std::exchange(slots_[i].news, {}));
      slots_[i].filled = false;
    }
  }
  return out;
}

void UpdateBox::close() {
  const std::lock_guard lock(mutex_);
  wake_ = nullptr;
}

}  // namespace warprow
