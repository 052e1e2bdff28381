// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

namespace warprow {

// Limits the memory of all connections together: their buffers, headers and bodies.
//
// Thread: one.
// Invariant: connections and headers, which need no key, have one half of the budget, and bodies the other. So neither
// use can block the other.
class MemoryBudget {
 public:
  enum class Use { kConnection, kBody };

  explicit MemoryBudget(uint64_t limit_bytes) : half_(limit_bytes / 2) {}

  // false: there is no room, and nothing is taken.
  [[nodiscard]] bool take(Use use, uint64_t bytes);
  void give(Use use, uint64_t bytes);
  [[nodiscard]] uint64_t used_bytes() const { return connections_ + bodies_; }

 private:
  uint64_t& used_by(Use use) { return use == Use::kConnection ? connections_ : bodies_; }

  uint64_t half_;
  uint64_t connections_ = 0;
  uint64_t bodies_ = 0;
};

// A part of the budget, returned by the destructor. The budget must outlive it.
class MemoryShare {
 public:
  MemoryShare(MemoryBudget& budget, MemoryBudget::Use use) : budget_(&budget), use_(use) {}
  MemoryShare(MemoryShare&& other) noexcept
      : budget_(other.budget_), use_(other.use_), bytes_(std::exchange(other.bytes_, 0)) {}
  MemoryShare& operator=(MemoryShare&&) = delete;
  ~MemoryShare() { budget_->give(use_, bytes_); }

  // false: there is no room, and the share stays as it is. A smaller share always succeeds.
  [[nodiscard]] bool resize(uint64_t bytes);

 private:
  MemoryBudget* budget_;
  MemoryBudget::Use use_;
  uint64_t bytes_ = 0;
};

}  // namespace warprow
