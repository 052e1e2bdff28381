// SPDX-License-Identifier: Apache-2.0
#include "runner/block_tables.h"

#include "device/cpu/cpu_device.h"
#include "runner/ops/apply_staged_writes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;

// Applies staged writes in order on a single lane.
struct TableLane {
  template <typename F>
  void for_each(int64_t n, const F& f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
};

// Block tables whose staged writes are applied after every step, as on the device.
class Tables {
 public:
  Tables(KvGroupSpec group, StepLimits limits) : device_(cpu::make_cpu_device(inline_mode())) {
    arena_ = device_->make_arena(ArenaPurpose::kState, 1 << 22);
    tables_.emplace(arena_, std::vector<KvGroupSpec>{group}, limits, staged_tables_);
    staged_.emplace(staged_tables_.max_writes(), staged_tables_.max_values());
    buffer_.resize(static_cast<size_t>(StagedWrites::max_packed_bytes(
                       staged_tables_.max_writes(), staged_tables_.max_values())) /
                       8 +
                   1);
  }

  void append(int32_t row, int32_t start, const Ints& blocks) {
    std::vector<BlockId> ids;
    for (const int32_t block : blocks) {
      ids.push_back(BlockId{block});
    }
    BlockAppend append;
    append.row = RowId{row};
    append.start = start;
    tables_->append(append, ids);
  }
  void release(int32_t row) { tables_->release(RowId{row}); }

  // Ends the step and returns the number of cells written.
  int32_t apply() {
    tables_->stage(*staged_);
    auto* bytes = reinterpret_cast<std::byte*>(buffer_.data());
    const StagedWrites::Packed packed = staged_->pack(bytes);
    ApplyStagedWrites op;
    std::ranges::copy(staged_tables_.tables(), std::begin(op.tables));
    op.groups = reinterpret_cast<const StagedGroup*>(bytes);
    op.writes = reinterpret_cast<const StagedWrite*>(bytes + packed.writes_offset);
    op.values = reinterpret_cast<const int32_t*>(bytes + packed.values_offset);
    for (int32_t g = 0; g < packed.num_groups; ++g) {
      op(g, TableLane());
    }
    return static_cast<int32_t>((packed.bytes - packed.values_offset) / 4);
  }

  [[nodiscard]] Ints cells(int32_t row, int32_t count) const {
    const int32_t* from = tables_->view(0).of_row(row);
    return {from, from + count};
  }
  [[nodiscard]] const BlockTables& tables() const { return *tables_; }

 private:
  static cpu::CpuDeviceOptions inline_mode() {
    cpu::CpuDeviceOptions options;
    options.mode = cpu::CpuStreamMode::kInline;
    options.num_threads = 1;
    return options;
  }
  std::unique_ptr<Device> device_;
  Arena arena_;
  StagedTables staged_tables_;
  std::optional<BlockTables> tables_;
  std::optional<StagedWrites> staged_;
  std::vector<int64_t> buffer_;
};

StepLimits limits_of(int32_t max_num_seqs, int32_t max_model_len, TokenPages pages = {}) {
  StepLimits limits;
  limits.max_num_seqs = max_num_seqs;
  limits.max_model_len = max_model_len;
  limits.token_pages = pages;
  return limits;
}

KvGroupSpec blocks_of(int32_t block_size, int32_t kernel_block_size) {
  KvGroupSpec group;
  group.block_size = block_size;
  group.kernel_block_size = kernel_block_size;
  return group;
}

TEST(BlockTables, ManagerBlocksBecomeKernelBlocks) {
  Tables halves(blocks_of(32, 16), limits_of(4, 1024));
  halves.append(1, 0, {0, 1});
  halves.apply();
  EXPECT_EQ(halves.cells(1, 4), (Ints{0, 1, 2, 3}));
  Tables quarters(blocks_of(64, 16), limits_of(4, 1024));
  quarters.append(3, 0, {2, 5});
  quarters.apply();
  EXPECT_EQ(quarters.cells(3, 8), (Ints{8, 9, 10, 11, 20, 21, 22, 23}));
}

TEST(BlockTables, AppendsWriteNewCellsAlone) {
  Tables tables(blocks_of(32, 16), limits_of(4, 1024));
  tables.append(1, 0, {7, 8, 9});
  tables.apply();
  tables.append(1, 3, {4});
  EXPECT_EQ(tables.apply(), 2);
  EXPECT_EQ(tables.cells(1, 8), (Ints{14, 15, 16, 17, 18, 19, 8, 9}));
}

// If all rows fit at their maximum length, nothing moves: a row's cells stay at their first place.
TEST(BlockTables, RowsThatAllFitNeverMove) {
  Tables tables(blocks_of(16, 16), limits_of(2, 4096));
  tables.append(1, 0, {1});
  tables.apply();
  const int32_t begin = tables.tables().view(0).begin_of(1);
  for (int32_t i = 1; i < 256; ++i) {
    tables.append(1, i, {1 + i});
    EXPECT_EQ(tables.apply(), 1);
  }
  EXPECT_EQ(tables.tables().view(0).begin_of(1), begin);
}

// 64 rows of up to 64 k tokens with a pool for 80 k tokens, a 32nd of their maximum. Random rows grow, end and are
// reused. Now and then all tables are compacted. Every cell of every live row is compared after every step.
TEST(BlockTables, RowsMoveAndKeepTheirCells) {
  const TokenPages pages = plan_token_pages(1024, 64, 1 << 16, 80 << 10);
  Tables tables(blocks_of(16, 16), limits_of(64, 1 << 16, pages));
  EXPECT_LT(tables.tables().view(0).num_cells, 64 * (1 << 16) / 16 / 8);
  std::mt19937 random(1);
  const auto below = [&](int32_t n) {
    return static_cast<int32_t>(random() % static_cast<uint32_t>(n));
  };
  std::map<int32_t, Ints> live;
  int32_t num_pages = 0;  // pages of live rows
  const auto pages_of = [&](size_t blocks) {
    return pages.pages_for(static_cast<int32_t>(blocks) * 16);
  };
  int32_t next_block = 1;
  int32_t num_moves = 0;
  for (int32_t step = 0; step < 3000; ++step) {
    for (auto row = live.begin(); row != live.end();) {
      const bool ends = below(200) == 0;
      if (ends) {
        num_pages -= pages_of(row->second.size());
        tables.release(row->first);
      }
      row = ends ? live.erase(row) : std::next(row);
    }
    for (int32_t i = 0; i < 8; ++i) {
      const int32_t row = below(64);
      Ints& blocks = live[row];
      const int32_t count = below(10) == 0 ? 1 + below(400) : 1 + below(4);
      const int32_t grown = pages_of(blocks.size() + static_cast<size_t>(count)) -
                            (blocks.empty() ? 0 : pages_of(blocks.size()));
      if (num_pages + grown >= pages.num_pages ||
          blocks.size() + static_cast<size_t>(count) > 4000) {
        if (blocks.empty()) {
          live.erase(row);
        }
        continue;
      }
      num_pages += grown;
      Ints fresh(static_cast<size_t>(count));
      std::iota(fresh.begin(), fresh.end(), next_block);
      next_block += count;
      const auto start = static_cast<int32_t>(blocks.size());
      blocks.insert(blocks.end(), fresh.begin(), fresh.end());
      tables.append(row, start, fresh);
    }
    num_moves += tables.apply() > 1500 ? 1 : 0;
    for (const auto& [row, blocks] : live) {
      ASSERT_EQ(tables.cells(row, static_cast<int32_t>(blocks.size())), blocks)
          << "row " << row << " after step " << step;
    }
  }
  EXPECT_GT(num_moves, 2) << "the pool was never full";
}

}  // namespace
}  // namespace warprow
