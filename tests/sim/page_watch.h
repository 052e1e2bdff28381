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

// Holds a scheduler to the rules of token pages: every row of a step has room for its tokens and for one
// that is sampled behind them, and no page goes to a new row, whose prompt the host writes at once,
// while a step in flight may read it.
class PageWatch {
 public:
  explicit PageWatch(int32_t page_size) : page_size_(page_size) {}

  // A step was planned; the host has written its prompts.
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
  std::deque<std::set<PageId>> in_flight_;  // pages that each step may read
};

}  // namespace warprow::testing
