// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace warprow {

// How many live requests an adapter has.
struct AdapterUse {
  int32_t adapter = -1;
  int32_t num_live = 0;
  int32_t num_running = 0;  // of them, with a row
};

// The adapters that requests may name, and which of them have rows: at most max_loras at once. -1 names none and is always
// known.
//
// Owns: the counts.
// Thread: the scheduler's.
class AdapterList {
 public:
  explicit AdapterList(int32_t max_loras) : max_loras_(max_loras) {}

  void add(int32_t adapter) {
    WR_CHECK(adapter >= 0 && !knows(adapter), "adapter {} is added twice", adapter);
    uses_.push_back({adapter});
  }
  // False if requests use it.
  bool remove(int32_t adapter) {
    const auto found = std::ranges::find(uses_, adapter, &AdapterUse::adapter);
    if (found != uses_.end() && found->num_live > 0) {
      return false;
    }
    if (found != uses_.end()) {
      uses_.erase(found);
    }
    return true;
  }
  [[nodiscard]] bool knows(int32_t adapter) const {
    return adapter < 0 || std::ranges::find(uses_, adapter, &AdapterUse::adapter) != uses_.end();
  }
  // Whether one more of its requests may take a row.
  [[nodiscard]] bool has_room_for(int32_t adapter) const {
    return adapter < 0 || num_used_ < max_loras_ || use_of(adapter).num_running > 0;
  }

  void add_live(int32_t adapter, int32_t count) {
    if (adapter >= 0) {
      use_of(adapter).num_live += count;
    }
  }
  void add_running(int32_t adapter, int32_t count) {
    if (adapter < 0) {
      return;
    }
    AdapterUse& use = use_of(adapter);
    num_used_ -= use.num_running > 0 ? 1 : 0;
    use.num_running += count;
    num_used_ += use.num_running > 0 ? 1 : 0;
    WR_CHECK_LE(num_used_, max_loras_);
  }
  [[nodiscard]] std::span<const AdapterUse> uses() const { return uses_; }
  [[nodiscard]] int32_t max_loras() const { return max_loras_; }

 private:
  [[nodiscard]] const AdapterUse& use_of(int32_t adapter) const {
    const auto found = std::ranges::find(uses_, adapter, &AdapterUse::adapter);
    WR_CHECK(found != uses_.end(), "adapter {} is unknown", adapter);
    return *found;
  }
  [[nodiscard]] AdapterUse& use_of(int32_t adapter) {
    return const_cast<AdapterUse&>(std::as_const(*this).use_of(adapter));
  }

  int32_t max_loras_;
  int32_t num_used_ = 0;  // adapters with rows
  std::vector<AdapterUse> uses_;
};

}  // namespace warprow
