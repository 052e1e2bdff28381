// SPDX-License-Identifier: Apache-2.0
// What must hold between any two calls; tests check it after each call.
#include "base/check.h"
#include "kv/kv_math.h"
#include "sched/scheduler.h"

namespace warprow {

std::vector<BlockId> Scheduler::block_table(uint64_t id, int32_t group) const {
  const int32_t index = requests_.find(id);
  WR_CHECK_GE(index, 0);
  return requests_[index].kv.tables.at(static_cast<size_t>(group)).blocks;
}

void Scheduler::check_invariants() const {
  const BlockPool& pool = kv_.pool();
  std::vector<int32_t> refs(static_cast<size_t>(pool.num_blocks()), 0);
  std::vector<bool> is_paged(static_cast<size_t>(kv_.pages().num_pages()), false);
  int32_t num_paged = 0;
  int32_t num_running = 0;
  for (int32_t i = running_.front(); i >= 0; i = requests_[i].next, ++num_running) {
    const LiveRequest& r = requests_[i];
    WR_CHECK(r.state == LiveRequest::State::kRunning);
    WR_CHECK_EQ(row_owner_.at(static_cast<size_t>(index_of(r.row))), i);
    WR_CHECK(0 <= r.least_pending && r.least_pending <= r.most_pending);
    WR_CHECK_LE(r.num_computed, r.num_known() + r.most_pending);
    WR_CHECK_LE(r.least_computed(), r.num_known() + r.least_pending);
    WR_CHECK_LE(r.num_computed, r.kv.capacity);
    for (const PageId page : r.kv.pages) {
      WR_CHECK(!is_paged.at(static_cast<size_t>(index_of(page))),
               "page {} is given out twice",
               index_of(page));
      is_paged[static_cast<size_t>(index_of(page))] = true;
    }
    num_paged += static_cast<int32_t>(r.kv.pages.size());
    for (size_t g = 0; g < r.kv.tables.size(); ++g) {
      const RequestKv::Table& table = r.kv.tables[g];
      const KvGroupSpec& group = config_.kv.groups[g];
      if (group.kind == KvKind::kSlidingWindow) {
        WR_CHECK_LE(table.num_dropped * group.block_size,
                    first_token_in_window(r.least_computed(), group.window));
      }
      for (const BlockId block : table.blocks) {
        ++refs[static_cast<size_t>(index_of(block))];
      }
    }
  }
  WR_CHECK_EQ(num_paged + kv_.pages().num_free() + kv_.pages().num_fenced(),
              kv_.pages().num_pages() - 1);
  WR_CHECK_EQ(num_running, running_.size());
  WR_CHECK_EQ(num_running + rows_.num_free(), config_.max_num_seqs);
  for (int32_t i = waiting_.front(); i >= 0; i = requests_[i].next) {
    WR_CHECK_EQ(requests_[i].kv.capacity, 0);
    WR_CHECK(requests_[i].kv.pages.empty());
  }
  std::vector<bool> is_free(refs.size(), false);
  for (const BlockId block : pool.free_order()) {
    WR_CHECK(!is_free[static_cast<size_t>(index_of(block))]);
    is_free[static_cast<size_t>(index_of(block))] = true;
  }
  int32_t num_idle = 0;
  for (int32_t b = 1; b < pool.num_blocks(); ++b) {
    const auto i = static_cast<size_t>(b);
    WR_CHECK(refs[i] == pool.num_refs(BlockId{b}),
             "block {}: {} tables name it, {} references",
             b,
             refs[i],
             pool.num_refs(BlockId{b}));
    WR_CHECK(refs[i] == 0 || !is_free[i], "block {} is held and free", b);
    WR_CHECK(refs[i] <= 1 || pool.is_hashed(BlockId{b}), "block {} is shared and not full", b);
    num_idle += refs[i] == 0 ? 1 : 0;
  }
  WR_CHECK_EQ(num_idle, pool.num_free() + pool.num_fenced());
}

}  // namespace warprow
