// SPDX-License-Identifier: Apache-2.0
#include "runner/features/slot_check.h"

#include "base/check.h"
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A row with blocks 3 and 4, two tokens, and slots as the device computes them.
class SlotCheckTest : public ::testing::Test {
 protected:
  void check(const std::vector<int64_t>& slots) {
    cpu::CpuDeviceOptions options;
    options.mode = cpu::CpuStreamMode::kInline;
    options.num_threads = 1;
    const auto device = cpu::make_cpu_device(options);
    const auto stream = device->make_stream();
    Arena arena = device->make_arena(ArenaPurpose::kState, 1 << 16);
    const StepLimits limits{.max_num_seqs = 4, .max_num_toks = 8, .max_steps_in_flight = 2};
    InputBuffers inputs(arena, limits, 1);
    std::copy(slots.begin(), slots.end(), inputs.slot_mapping);
    KvGroupSpec group;
    group.block_size = 16;
    RunnerParts parts;
    parts.limits = limits;
    parts.groups = {&group, 1};
    parts.inputs = &inputs;
    const auto feature = make_slot_check(parts);
    StagedWrites staged(0, 0);
    NewRow row;
    row.row = RowId{2};
    SchedulerOutput step;
    feature->on_row_added(row, step, staged);
    BlockAppend append;
    append.row = RowId{2};
    append.blocks = {0, 2};
    step.block_ids = {BlockId{3}, BlockId{4}};
    step.block_appends = {append};
    feature->stage(step, staged);
    InputBatch batch;
    batch.rows = {{RowId{2}, 2, 15, 0}};
    batch.num_rows = 1;
    batch.num_toks = 2;
    feature->after_forward(*stream, batch);
    // The next step's slots are at another place and are not checked yet.
    std::fill(inputs.slot_mapping, inputs.slot_mapping + 8, -1);
    feature->after_forward(*stream, batch);
    ModelRunnerOutput output;
    feature->on_output(output);
  }
};

TEST_F(SlotCheckTest, AcceptsOwnSlotsOnce) { check({3 * 16 + 15, 4 * 16}); }

TEST_F(SlotCheckTest, FindsForeignAndDoubleSlots) {
  const ScopedCheckThrows throws;
  EXPECT_THROW(check({3 * 16 + 15, 5 * 16}), CheckFailure);       // another row's block
  EXPECT_THROW(check({3 * 16 + 15, -1}), CheckFailure);           // padding for a real token
  EXPECT_THROW(check({3 * 16 + 15, 3 * 16 + 15}), CheckFailure);  // one slot twice
  EXPECT_THROW(check({5, 4 * 16}), CheckFailure);                 // the null block
}

}  // namespace
}  // namespace warprow
