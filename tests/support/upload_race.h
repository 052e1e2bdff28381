// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/device.h"
#include "runner/ops/runner_ops.h"
#include "runner/step_upload.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include <gtest/gtest.h>

namespace warprow::test {

// Tests for an upload race with a blocked stream: the host writes steps A and B and hands them to the device before the
// device has read either. Each step must then read its own layout and its own staged writes. hold() blocks the stream
// before any work of the test runs on it; release() unblocks it.
inline void expect_a_this_step_b_the_next(Device& device,
                                          Stream& stream,
                                          const std::function<void()>& hold,
                                          const std::function<void()>& release) {
  constexpr int32_t kRows = 4;
  constexpr int32_t kInFlight = 2;
  constexpr int64_t kWords = 64;
  Arena state = device.make_arena(ArenaPurpose::kState, 1 << 16);
  auto* const table = state.alloc<int32_t>(kWords);
  StagedTables tables;
  const int32_t index = tables.add(table, kWords / kRows, kRows, kWords);
  StagedWrites staged(tables.max_writes(), tables.max_values());
  StepUpload upload(state, kRows);
  upload.make_ring(device,
                   StagedWrites::max_packed_bytes(tables.max_writes(), tables.max_values()),
                   kInFlight + 1);
  const auto ops = make_runner_ops(device);
  struct Seen {
    int32_t entry, row, query_start, num_logits, cell;
  };
  PinnedBuffer seen = device.make_pinned(kInFlight * sizeof(Seen));
  const auto copy = [&](int32_t* to, const int32_t* from) {
    stream.copy_to_host(to, from, sizeof(int32_t));
  };

  hold();
  for (int32_t step = 0; step < kInFlight; ++step) {
    const int32_t value = step == 0 ? 'A' : 'B';
    const StepUpload::Entry entry = upload.begin(step);
    *entry.output_entry = value;
    entry.idx_mapping[1] = value + 1;
    entry.query_start_loc[kRows] = value + 2;
    entry.cu_num_logits[kRows] = value + 3;
    staged.stage(index, RowId{2}, 5, 1)[0] = value + 4;
    const StagedWrites::Packed packed = staged.pack(entry.staged);
    UnpackStep op;
    std::copy(tables.tables().begin(), tables.tables().end(), op.staged.tables);
    upload.submit(op, packed);
    ops->unpack_step(stream, op, packed.num_groups);
    Seen& to = seen.as<Seen>()[step];
    copy(&to.entry, upload.output_entry());
    copy(&to.row, upload.idx_mapping() + 1);
    copy(&to.query_start, upload.query_start_loc() + kRows);
    copy(&to.num_logits, upload.cu_num_logits() + kRows);
    copy(&to.cell, table + 2 * (kWords / kRows) + 5);
  }
  // The host may write a third entry now, because no step in flight uses it. A fourth would overwrite step A's.
  *upload.begin(kInFlight).output_entry = 'C';
  {
    const ScopedCheckThrows throws;
    EXPECT_THROW(upload.begin(kInFlight + 1), CheckFailure);
  }
  release();
  stream.synchronize();
  for (int32_t step = 0; step < kInFlight; ++step) {
    const int32_t value = step == 0 ? 'A' : 'B';
    const Seen& got = seen.as<Seen>()[step];
    EXPECT_EQ(got.entry, value);
    EXPECT_EQ(got.row, value + 1);
    EXPECT_EQ(got.query_start, value + 2);
    EXPECT_EQ(got.num_logits, value + 3);
    EXPECT_EQ(got.cell, value + 4);
  }
}

}  // namespace warprow::test
