// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.h"

#include "base/check.h"
#include "device/cpu/cpu_stream.h"
#include "device/shape_only.h"

#include <cstring>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::cpu {
namespace {

std::unique_ptr<CpuDevice> device_of(CpuStreamMode mode, uint64_t seed = 1, int32_t threads = 2) {
  CpuDeviceOptions options;
  options.mode = mode;
  options.seed = seed;
  options.num_threads = threads;
  return make_cpu_device(options);
}

// The plan counts all requested pinned memory. The machine counts the buffers that still exist.
TEST(PinnedMemory, IsCounted) {
  const auto device = device_of(CpuStreamMode::kInline);
  const PinnedBuffer kept = device->make_pinned(100);
  {
    const PinnedBuffer passing = device->make_pinned(28);
    EXPECT_EQ(device->pinned_bytes(), 128);
  }
  EXPECT_EQ(device->pinned_bytes(), 100);
  const auto shapes = make_shape_only_device(device->facts());
  shapes->make_pinned(100);
  shapes->make_pinned(int64_t{1} << 40);
  EXPECT_EQ(shapes->pinned_bytes(), 100 + (int64_t{1} << 40));
}

class StreamTest : public ::testing::TestWithParam<CpuStreamMode> {};
INSTANTIATE_TEST_SUITE_P(Modes,
                         StreamTest,
                         ::testing::Values(CpuStreamMode::kThreaded,
                                           CpuStreamMode::kInline,
                                           CpuStreamMode::kDeferred));

TEST_P(StreamTest, RunsInOrder) {
  const auto device = device_of(GetParam());
  const auto stream = device->make_stream();
  std::vector<int> order;
  for (int i = 0; i < 10000; ++i) {
    as_cpu(*stream).launch("push", [&order, i](ComputePool&) { order.push_back(i); });
  }
  stream->synchronize();
  std::vector<int> expected(10000);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
  EXPECT_EQ(device->num_commands_run(), 10000);
}

// A consumer stream that waits for the producer's event sees the producer's writes under any interleaving.
TEST_P(StreamTest, EventsOrderStreams) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device_of(GetParam(), seed);
    const auto producer = device->make_stream();
    const auto consumer = device->make_stream();
    const auto written = device->make_event();
    int value = 0;
    int seen = -1;
    as_cpu(*producer).launch("write", [&value](ComputePool&) { value = 42; });
    producer->record(*written);
    consumer->wait(*written);
    as_cpu(*consumer).launch("read", [&](ComputePool&) { seen = value; });
    consumer->synchronize();
    EXPECT_EQ(seen, 42);
    producer->synchronize();
  }
}

// Without the wait, the deferred stream finds an order in which the consumer runs first.
TEST(DeferredStream, FindsAMissingWait) {
  bool missed = false;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const auto device = device_of(CpuStreamMode::kDeferred, seed);
    const auto producer = device->make_stream();
    const auto consumer = device->make_stream();
    int value = 0;
    int seen = -1;
    as_cpu(*producer).launch("write", [&value](ComputePool&) { value = 42; });
    as_cpu(*consumer).launch("read", [&](ComputePool&) { seen = value; });
    consumer->synchronize();
    producer->synchronize();
    missed |= seen != 42;
  }
  EXPECT_TRUE(missed);
}

TEST(DeferredStream, WaitingForNothingIsChecked) {
  const ScopedCheckThrows throws;
  const auto device = device_of(CpuStreamMode::kDeferred);
  const auto stream = device->make_stream();
  const auto event = device->make_event();
  stream->record(*event);
  device->set_gate(false);
  EXPECT_THROW(event->wait(), CheckFailure);
  device->set_gate(true);
  event->wait();
}

TEST(ShapeOnlyDevice, RunsNothing) {
  const auto device = make_shape_only_device({});
  const auto stream = device->make_stream();
  Arena arena = device->make_arena(ArenaPurpose::kWeights, size_t{1} << 45);
  auto* data = arena.alloc<float>(int64_t{1} << 40);
  stream->fill(data, 0, 64);
  stream->synchronize();
  EXPECT_EQ(arena.used(), size_t{4} << 40);
}

TEST(Arena, HandsOutAlignedPiecesAndChecksItsEnd) {
  const auto device = device_of(CpuStreamMode::kInline);
  Arena arena = device->make_arena(ArenaPurpose::kWorkspace, 1024);
  auto* a = arena.alloc<char>(3);
  auto* b = arena.alloc<float>(16);
  EXPECT_EQ(reinterpret_cast<std::byte*>(b) - reinterpret_cast<std::byte*>(a), 256);
  const size_t mark = arena.mark();
  arena.alloc<char>(500);
  arena.reset(mark);
  EXPECT_EQ(arena.used(), mark);
  EXPECT_EQ(arena.high_water(), 512U + 500U);
  const ScopedCheckThrows throws;
  EXPECT_THROW(arena.alloc<char>(1000), CheckFailure);
}

TEST(GuardDeathTest, HostAccessFaults) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        CpuDeviceOptions options;
        options.mode = CpuStreamMode::kInline;
        options.num_threads = 1;
        options.guard_arenas = true;
        const auto device = make_cpu_device(options);
        Arena arena = device->make_arena(ArenaPurpose::kState, 4096);
        std::memset(arena.alloc_bytes(8), 1, 8);
      },
      "");
}

}  // namespace
}  // namespace warprow::cpu
