// SPDX-License-Identifier: Apache-2.0
#include "sched/page_pool.h"

#include "base/check.h"

#include <algorithm>

namespace warprow {

PagePool::PagePool(int32_t num_pages) : num_pages_(num_pages) {
  WR_CHECK_GT(num_pages, 1);
  free_.reserve(static_cast<size_t>(num_pages));
  fenced_.reserve(static_cast<size_t>(num_pages));
  for (int32_t page = num_pages - 1; page > 0; --page) {
    free_.push_back(PageId{page});
  }
}

PageId PagePool::take() {
  WR_CHECK(!free_.empty(), "no page is free");
  const PageId page = free_.back();
  free_.pop_back();
  return page;
}

void PagePool::release(const std::vector<PageId>& pages, int64_t last_step) {
  if (pages.empty()) {
    return;
  }
  if (last_step <= completed_step_) {
    free_.insert(free_.end(), pages.begin(), pages.end());
    ++num_changes_;
    return;
  }
  WR_DCHECK(fenced_.empty() || fenced_.back().step <= last_step);
  for (const PageId page : pages) {
    fenced_.push_back({last_step, page});
  }
}

void PagePool::complete(int64_t step) {
  completed_step_ = step;
  const auto first_held = std::find_if(
      fenced_.begin(), fenced_.end(), [step](const Fenced& fenced) { return fenced.step > step; });
  if (first_held == fenced_.begin()) {
    return;
  }
  for (auto fenced = fenced_.begin(); fenced != first_held; ++fenced) {
    free_.push_back(fenced->page);
  }
  fenced_.erase(fenced_.begin(), first_held);
  ++num_changes_;
}

}  // namespace warprow
