// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The pages of the token pool (kv/token_pages.h) that no row has. A released page waits until the last
// step that may read it is complete, since the host writes a new row's prompt into it at once.
//
// Owns: the free pages of 1 .. num_pages - 1; page 0 is never given out.
// Thread: one, the scheduler's.
// Invariant: a page is free, fenced, or a row's; nothing is allocated after construction.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  [[nodiscard]] int32_t num_pages() const { return num_pages_; }
  [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t num_fenced() const { return static_cast<int32_t>(fenced_.size()); }
  // Times pages became free: who was refused for lack of pages need not ask again before it grows.
  [[nodiscard]] int64_t num_changes() const { return num_changes_; }

  // num_free() must be > 0.
  PageId take();
  // `last_step`: the last step that may read the pages; no earlier than that of a release before.
  void release(const std::vector<PageId>& pages, int64_t last_step);
  // Steps up to and including `step` are complete.
  void complete(int64_t step);

 private:
  struct Fenced {
    int64_t step = 0;
    PageId page{};
  };
  int32_t num_pages_;
  int64_t num_changes_ = 0;
  int64_t completed_step_ = 0;
  std::vector<PageId> free_;    // the last one is given out next
  std::vector<Fenced> fenced_;  // by step
};

}  // namespace warprow
