// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"

#include <cstdint>
#include <vector>

namespace warprow {

// The free and the fenced pages of the token pool (kv/token_pages.h). A released page waits until the last step
// that may read it is complete, because the host writes a new row's prompt into its pages at once.
//
// Owns: which of pages 1 .. num_pages - 1 are free; page 0 is never given out.
// Thread: one, the scheduler's.
// Invariant: a page is free, fenced, or held by a row; nothing is allocated after construction.
class PagePool {
 public:
  explicit PagePool(int32_t num_pages);

  [[nodiscard]] int32_t num_pages() const { return num_pages_; }
  [[nodiscard]] int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  [[nodiscard]] int32_t num_fenced() const { return static_cast<int32_t>(fenced_.size()); }
  // How often pages became free. A request refused for lack of pages need not retry before this grows.
  [[nodiscard]] int64_t num_changes() const { return num_changes_; }

  // num_free() must be > 0.
  PageId take();
  // `last_step`: the last step that may read the pages. It never decreases from one call to the next.
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
