// SPDX-License-Identifier: Apache-2.0
#include "runner/staged_writes.h"

#include "base/check.h"
#include "tests/runner/step_fixture.h"

#include <algorithm>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;

void stage(StagedWrites& staged, int32_t row, int32_t start, const Ints& values) {
  const auto cells = staged.stage(0, RowId{row}, start, static_cast<int32_t>(values.size()));
  std::copy(values.begin(), values.end(), cells.begin());
}

// Packs the writes and applies them to one table, in shuffled order.
void apply(StagedWrites& staged, Ints& table, int64_t row_stride) {
  test::StepFixture fixture(true);
  std::vector<int64_t> buffer(1 << 14);
  auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
  const StagedWrites::Packed packed = staged.pack(bytes);
  UnpackStep op;
  op.staged.tables[0] = {table.data(), row_stride};
  op.staged.groups = reinterpret_cast<const StagedGroup*>(bytes);
  op.staged.writes = reinterpret_cast<const StagedWrite*>(bytes + packed.writes_offset);
  op.staged.values = reinterpret_cast<const int32_t*>(bytes + packed.values_offset);
  fixture.ops->unpack_step(*fixture.stream, op, packed.num_groups);
}

TEST(StagedWrites, ExactlyTheSixCells) {
  Ints table(1024 * 1000, 0);
  StagedWrites staged(8, 64);
  stage(staged, 2, 3, {3, 1, 2});
  stage(staged, 0, 1, {-1, -2, -5});
  apply(staged, table, 1000);
  Ints expected(1024 * 1000, 0);
  expected[2003] = 3;
  expected[2004] = 1;
  expected[2005] = 2;
  expected[1] = -1;
  expected[2] = -2;
  expected[3] = -5;
  EXPECT_EQ(table, expected);
}

TEST(StagedWrites, TheLaterWriteWins) {
  Ints table(16, 9);
  StagedWrites staged(8, 64);
  stage(staged, 0, 2, {1, 2, 3, 4});
  stage(staged, 0, 3, {7, 8});
  stage(staged, 0, 4, {5});
  apply(staged, table, 16);
  EXPECT_EQ(table, (Ints{9, 9, 1, 7, 5, 4, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9}));
}

TEST(StagedWrites, NothingStagedIsZeroBytes) {
  StagedWrites staged(8, 64);
  std::vector<int64_t> buffer(8);
  EXPECT_EQ(staged.pack(reinterpret_cast<std::byte*>(buffer.data())).bytes, 0);
}

TEST(StagedWrites, TooMuchIsChecked) {
  const ScopedCheckThrows throws;
  StagedWrites staged(1, 4);
  EXPECT_THROW(stage(staged, 0, 0, {1, 2, 3, 4, 5}), CheckFailure);
  stage(staged, 0, 0, {1});
  EXPECT_THROW(stage(staged, 0, 0, {1}), CheckFailure);
}

// Compares random overlapping writes with applying them one by one. Cells that the device wrote are kept.
TEST(StagedWrites, RandomWritesEqualSequentialOnes) {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Ints table(8 * 32);
    std::generate(
        table.begin(), table.end(), [&] { return static_cast<int32_t>(random() % 1000); });
    Ints expected = table;
    StagedWrites staged(40, 2000);
    for (int write = 0; write < 40; ++write) {
      const auto row = static_cast<int32_t>(random() % 8);
      const auto start = static_cast<int32_t>(random() % 30);
      Ints values(1 + random() % static_cast<uint32_t>(32 - start));
      std::generate(
          values.begin(), values.end(), [&] { return -static_cast<int32_t>(random() % 1000); });
      stage(staged, row, start, values);
      std::copy(values.begin(), values.end(), expected.begin() + row * 32 + start);
    }
    apply(staged, table, 32);
    ASSERT_EQ(table, expected);
  }
}

}  // namespace
}  // namespace warprow
