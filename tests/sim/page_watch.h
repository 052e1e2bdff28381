// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kv/token_pages.h"
#include "wire/scheduler_output.h"

#include <deque>
#include <map>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing {

// Checks a scheduler's use of token pages. Every row of a step has room for its tokens and the token sampled after
// them. A page that a step in flight may read is never given to a new row, because the host writes the new prompt at
// once.
class PageWatch {
 public:
  explicit PageWatch(int32_t page_size) : page_size_(page_size) {}

  // Checks a planned step, after the host has written its prompts.
  void launch(const SchedulerOutput& step) {
    for (const std::vector<RowId>* rows : {&step.finished_rows, &step.preempted_rows}) {
      for (const RowId row : *rows) {
        pages_.erase(row);
      }
    }
    for (const PageAppend& append : step.page_appends) {
      std::vector<PageId>& pages = pages_[append.row];
      ASSERT_EQ(append.start, static_cast<int32_t>(pages.size()));
      for (int32_t i = 0; i < append.pages.count; ++i) {
        pages.push_back(step.page_ids.at(static_cast<size_t>(append.pages.begin + i)));
      }
    }
    for (const NewRow& row : step.new_rows) {
      for (const PageId page : pages_[row.row]) {
        for (const std::set<PageId>& read : in_flight_) {
          ASSERT_EQ(read.count(page), 0U) << "page " << index_of(page) << " is still read";
        }
      }
    }
    std::set<PageId>& read = in_flight_.emplace_back();
    for (const ScheduledRow& row : step.scheduled) {
      const std::vector<PageId>& pages = pages_[row.row];
      ASSERT_LT(row.num_computed_tokens + row.num_tokens,
                static_cast<int32_t>(pages.size()) * page_size_);
      read.insert(pages.begin(), pages.end());
    }
  }
  void collect() { in_flight_.pop_front(); }

 private:
  int32_t page_size_;
  std::map<RowId, std::vector<PageId>> pages_;
  std::deque<std::set<PageId>> in_flight_;  // pages that each step in flight may read
};

}  // namespace warprow::testing
