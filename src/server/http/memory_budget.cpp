// SPDX-License-Identifier: Apache-2.0
#include "server/http/memory_budget.h"

namespace warprow {

bool MemoryBudget::take(Use use, uint64_t bytes) {
  uint64_t& used = used_by(use);
  if (bytes > half_ - used) {
    return false;
  }
  used += bytes;
  return true;
}

void MemoryBudget::give(Use use, uint64_t bytes) { used_by(use) -= bytes; }

bool MemoryShare::resize(uint64_t bytes) {
  if (bytes > bytes_ && !budget_->take(use_, bytes - bytes_)) {
    return false;
  }
  if (bytes < bytes_) {
    budget_->give(use_, bytes_ - bytes);
  }
  bytes_ = bytes;
  return true;
}

}  // namespace warprow
