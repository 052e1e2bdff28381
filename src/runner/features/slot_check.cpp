// SPDX-License-Identifier: Apache-2.0
#include "runner/features/slot_check.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/device.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// What one step should look like, kept until the stream has checked it.
struct Expected {
  struct Row {
    int32_t first_tok;
    int32_t num_toks;
    std::vector<std::vector<BlockId>> blocks;  // by group
  };
  std::vector<Row> rows;
};

class SlotCheck final : public RunnerFeature {
 public:
  explicit SlotCheck(const RunnerParts& parts)
      : groups_(parts.groups.begin(), parts.groups.end()),
        inputs_(*parts.inputs),
        blocks_(static_cast<size_t>(parts.limits.max_num_seqs)) {
    for (auto& groups : blocks_) {
      groups.resize(groups_.size());
    }
  }

  void on_row_added(const NewRow& row,
                    const SchedulerOutput& /*step*/,
                    StagedWrites& /*staged*/) override {
    for (std::vector<BlockId>& blocks : of(row.row)) {
      blocks.clear();
    }
  }

  void stage(const SchedulerOutput& step, StagedWrites& /*staged*/) override {
    for (const BlockAppend& append : step.block_appends) {
      std::vector<BlockId>& blocks = of(append.row)[static_cast<size_t>(append.group)];
      WR_CHECK_EQ(append.start, blocks.size());
      const auto first = step.block_ids.begin() + append.blocks.begin;
      blocks.insert(blocks.end(), first, first + append.blocks.count);
    }
  }

  void after_forward(Stream& stream, const InputBatch& batch) override {
    if (stream.device().facts().kind != DeviceKind::kCpu) {
      return;
    }
    auto expected = std::make_unique<Expected>();
    int32_t tok = 0;
    for (const ScheduledRow& row : batch.rows) {
      expected->rows.push_back({tok, row.num_tokens, of(row.row)});
      tok += row.num_tokens;
    }
    // The command owns the expectation until it has run.
    cpu::as_cpu(stream).launch("slot_check", [this, raw = expected.release()](cpu::ComputePool&) {
      const std::unique_ptr<Expected> owned(raw);
      for (size_t group = 0; group < groups_.size(); ++group) {
        check_group(*owned, group);
      }
    });
  }

 private:
  std::vector<std::vector<BlockId>>& of(RowId row) {
    return blocks_[static_cast<size_t>(index_of(row))];
  }

  void check_group(const Expected& expected, size_t group) const {
    const int64_t block_size = groups_[group].block_size;
    const int64_t* slots =
        inputs_.slot_mapping + static_cast<int64_t>(group) * inputs_.max_num_toks;
    std::unordered_set<int64_t> written;
    for (const Expected::Row& row : expected.rows) {
      for (int32_t tok = row.first_tok; tok < row.first_tok + row.num_toks; ++tok) {
        // Manager and kernel blocks number slots alike.
        const BlockId block{static_cast<int32_t>(slots[tok] / block_size)};
        const std::vector<BlockId>& own = row.blocks[group];
        WR_CHECK(block != kNullBlock && std::find(own.begin(), own.end(), block) != own.end(),
                 "token {} writes slot {} outside its request's blocks",
                 tok,
                 slots[tok]);
        WR_CHECK(
            written.insert(slots[tok]).second, "slot {} is written twice in a step", slots[tok]);
      }
    }
  }

  std::vector<KvGroupSpec> groups_;
  const InputBuffers& inputs_;
  std::vector<std::vector<std::vector<BlockId>>> blocks_;  // [row][group]
};

}  // namespace

std::unique_ptr<RunnerFeature> make_slot_check(const RunnerParts& parts) {
  return std::make_unique<SlotCheck>(parts);
}

}  // namespace warprow
