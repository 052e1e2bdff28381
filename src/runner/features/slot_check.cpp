// SPDX-License-Identifier: Apache-2.0
#include "runner/features/slot_check.h"

#include "base/check.h"
#include "device/device.h"

#include <algorithm>
#include <unordered_set>
#include <utility>
#include <vector>

namespace warprow {
namespace {

// The expected content of one step, kept until its output is taken.
struct Expected {
  struct Row {
    int32_t first_tok;
    int32_t num_toks;
    std::vector<std::vector<BlockId>> blocks;  // by group
  };
  std::vector<Row> rows;
  PinnedBuffer slots;  // i64 [groups, max_num_toks]  what the device computed
};

class SlotCheck final : public RunnerFeature {
 public:
  explicit SlotCheck(const RunnerParts& parts)
      : groups_(parts.groups.begin(), parts.groups.end()),
        inputs_(*parts.inputs),
        steps_(static_cast<size_t>(parts.limits.max_steps_in_flight)),
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
      if (groups_[static_cast<size_t>(append.group)].kind == KvKind::kState) {
        continue;
      }
      WR_CHECK_EQ(append.start, blocks.size());
      const auto first = step.block_ids.begin() + append.blocks.begin;
      blocks.insert(blocks.end(), first, first + append.blocks.count);
    }
  }

  // The copy is complete when the step's output is taken, so it needs no wait of its own.
  void after_forward(Stream& stream, const InputBatch& batch) override {
    Expected& expected = next(submitted_++, stream.device());
    expected.rows.clear();
    int32_t tok = 0;
    for (const ScheduledRow& row : batch.rows) {
      expected.rows.push_back({tok, row.num_tokens, of(row.row)});
      tok += row.num_tokens;
    }
    if (tok > 0) {
      stream.copy_to_host(expected.slots.data(), inputs_.slot_mapping, slot_bytes());
    }
  }

  void on_output(ModelRunnerOutput& /*output*/) override {
    const Expected& expected = steps_[static_cast<size_t>(checked_++) % steps_.size()];
    for (size_t group = 0; group < groups_.size(); ++group) {
      if (groups_[group].kind != KvKind::kState) {
        check_group(expected, group);
      }
    }
  }

 private:
  std::vector<std::vector<BlockId>>& of(RowId row) {
    return blocks_[static_cast<size_t>(index_of(row))];
  }

  [[nodiscard]] size_t slot_bytes() const {
    return groups_.size() * static_cast<size_t>(inputs_.max_num_toks) * sizeof(int64_t);
  }
  // Pinned memory is allocated in the first steps, not in the constructor: this is a check, and no memory plan
  // counts it.
  Expected& next(int64_t step, Device& device) {
    Expected& expected = steps_[static_cast<size_t>(step) % steps_.size()];
    if (expected.slots.data() == nullptr) {
      expected.slots = device.make_pinned(slot_bytes());
    }
    return expected;
  }

  void check_group(const Expected& expected, size_t group) const {
    const int64_t block_size = groups_[group].block_size;
    const int64_t* slots =
        expected.slots.as<int64_t>() + static_cast<int64_t>(group) * inputs_.max_num_toks;
    std::unordered_set<int64_t> written;
    for (const Expected::Row& row : expected.rows) {
      for (int32_t tok = row.first_tok; tok < row.first_tok + row.num_toks; ++tok) {
        // Manager blocks and kernel blocks give a slot the same number.
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
  std::vector<Expected> steps_;  // [steps in flight], used in turn
  int64_t submitted_ = 0;
  int64_t checked_ = 0;
  std::vector<std::vector<std::vector<BlockId>>> blocks_;  // [row][group]
};

}  // namespace

std::unique_ptr<RunnerFeature> make_slot_check(const RunnerParts& parts) {
  return std::make_unique<SlotCheck>(parts);
}

}  // namespace warprow
