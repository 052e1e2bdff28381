// SPDX-License-Identifier: Apache-2.0
#include "runner/block_tables.h"

#include "device/cpu/cpu_device.h"

#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;

Ints staged_cells(int32_t block_size,
                  int32_t kernel_block_size,
                  const std::vector<BlockId>& blocks,
                  int32_t start) {
  cpu::CpuDeviceOptions options;
  options.mode = cpu::CpuStreamMode::kInline;
  options.num_threads = 1;
  const auto device = cpu::make_cpu_device(options);
  Arena arena = device->make_arena(ArenaPurpose::kState, 1 << 20);
  KvGroupSpec group;
  group.block_size = block_size;
  group.kernel_block_size = kernel_block_size;
  StagedTables staged_tables;
  const BlockTables tables(arena,
                           std::vector<KvGroupSpec>{group},
                           {.max_num_seqs = 4, .max_model_len = 1024},
                           staged_tables);
  StagedWrites staged(4, 256);
  BlockAppend append;
  append.row = RowId{1};
  append.start = start;
  tables.append(append, blocks, staged);
  std::vector<int64_t> buffer(512);
  auto* bytes = reinterpret_cast<std::byte*>(buffer.data());
  const auto packed = staged.pack(bytes);
  const auto* values = reinterpret_cast<const int32_t*>(bytes + packed.values_offset);
  const auto* write = reinterpret_cast<const StagedWrite*>(bytes + packed.writes_offset);
  Ints cells{write->start};
  cells.insert(cells.end(), values, values + write->count);
  return cells;
}

TEST(BlockTables, ManagerBlocksBecomeKernelBlocks) {
  EXPECT_EQ(staged_cells(32, 16, {BlockId{0}, BlockId{1}}, 0), (Ints{0, 0, 1, 2, 3}));
  EXPECT_EQ(staged_cells(64, 16, {BlockId{2}, BlockId{5}}, 0),
            (Ints{0, 8, 9, 10, 11, 20, 21, 22, 23}));
}

TEST(BlockTables, AppendsStartInKernelBlocks) {
  EXPECT_EQ(staged_cells(32, 16, {BlockId{4}}, 3), (Ints{6, 8, 9}));
  EXPECT_EQ(staged_cells(16, 16, {BlockId{4}}, 3), (Ints{3, 4}));
}

}  // namespace
}  // namespace warprow
