// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/shared_memory_communicator.h"

#include "base/check.h"
#include "base/error.h"
#include "comm/alone.h"
#include "comm/progress_word.h"
#include "comm/shared_memory.h"
#include "device/cpu/cpu_device.h"
#include "device/shape_only.h"
#include "tests/comm/ranks.h"

#include <algorithm>
#include <unistd.h>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

using cpu::CpuStreamMode;

constexpr SlotSizes kSmallSlots = {.collective_bytes = 1024, .pair_bytes = 256};

// The memory that the ranks of a test share: the flag in the first page, then the communicator's.
class SharedGroup {
 public:
  explicit SharedGroup(int32_t size, SlotSizes sizes = kSmallSlots)
      : size_(size),
        sizes_(sizes),
        memory_(SharedMemory::create(kPage + shared_memory_communicator_bytes(size, sizes))) {}

  [[nodiscard]] AbortFlag& abort() const { return AbortFlag::at(memory_.data()); }
  [[nodiscard]] std::unique_ptr<Communicator> join(int32_t rank) const {
    return make_shared_memory_communicator({rank, size_}, memory_.data() + kPage, abort(), sizes_);
  }

 private:
  static constexpr size_t kPage = 4096;
  int32_t size_;
  SlotSizes sizes_;
  SharedMemory memory_;
};

struct Case {
  CpuStreamMode mode;
  int32_t size;
};
class SharedMemoryRanks : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Modes,
                         SharedMemoryRanks,
                         ::testing::Values(Case{CpuStreamMode::kThreaded, 1},
                                           Case{CpuStreamMode::kThreaded, 2},
                                           Case{CpuStreamMode::kThreaded, 3},
                                           Case{CpuStreamMode::kThreaded, 4},
                                           Case{CpuStreamMode::kInline, 2},
                                           Case{CpuStreamMode::kInline, 4},
                                           Case{CpuStreamMode::kDeferred, 3}));

// Slots of 256 values: most operations need one, some up to 20 times both.
TEST_P(SharedMemoryRanks, ThousandsOfRandomOperations) {
  const CpuStreamMode mode = GetParam().mode;
  const int32_t size = GetParam().size;
  const SharedGroup group(size);
  const auto operations =
      random_operations(11 + static_cast<uint64_t>(size), size, kManyOperations, 10000);
  as_threads(size, [&](int32_t rank) {
    const auto comm = group.join(rank);
    EXPECT_EQ(run_operations(*comm, {rank, size}, mode, operations), "");
  });
}

TEST_P(SharedMemoryRanks, GraphsReplay) {
  const CpuStreamMode mode = GetParam().mode;
  const int32_t size = GetParam().size;
  const SharedGroup group(size);
  const auto operations = random_operations(5, size, 40, 3000);
  as_threads(size, [&](int32_t rank) {
    const auto comm = group.join(rank);
    EXPECT_EQ(replay_operations(*comm, {rank, size}, mode, operations, 20), "");
  });
}

// With the slots of production and two threads a rank, around the size at which sums are divided, and larger than all slots.
TEST(SharedMemory, LargeMessages) {
  const int32_t size = 3;
  const SharedGroup group(size, {});
  std::vector<Operation> operations;
  for (const int64_t n : {2048, 2049, 300001}) {
    for (int32_t kind = 0; kind < static_cast<int32_t>(OperationKind::kCount); ++kind) {
      operations.push_back({static_cast<OperationKind>(kind), 1, n, 3, 2, 1, 77});
    }
  }
  as_threads(size, [&](int32_t rank) {
    const auto comm = group.join(rank);
    EXPECT_EQ(run_operations(*comm, {rank, size}, CpuStreamMode::kThreaded, operations, 2), "");
  });
}

// The results of as many steps as can be in flight lie unread, with the most bytes that a step has.
TEST(SharedMemory, ASendBetweenStagesDoesNotWaitForTheOther) {
  const int32_t size = 3;
  const SharedGroup group(size, stage_slots(size));
  const auto last = group.join(2);
  const auto first = group.join(0);
  const auto device = make_test_device(CpuStreamMode::kThreaded);
  const auto stream = device->make_stream();
  std::vector<std::byte> sent(kMostResultBytes);
  std::vector<std::byte> received(kMostResultBytes);
  for (int32_t step = 0; step <= size; ++step) {
    std::ranges::fill(sent, std::byte(step + 1));
    last->send(*stream, sent.data(), sent.size(), 0);
    stream->synchronize();
  }
  for (int32_t step = 0; step <= size; ++step) {
    first->receive(*stream, received.data(), received.size(), 2);
    stream->synchronize();
    EXPECT_EQ(std::ranges::count(received, std::byte(step + 1)), std::ssize(received)) << step;
  }
}

TEST(SharedMemory, RanksAreProcesses) {
  WR_SKIP_FORKS();
  const int32_t size = 4;
  const SharedGroup group(size);
  const auto operations = random_operations(3, size, 1000, 8000);
  EXPECT_EQ(as_processes(size,
                         [&](int32_t rank) {
                           const auto comm = group.join(rank);
                           return run_operations(
                               *comm, {rank, size}, CpuStreamMode::kThreaded, operations);
                         }),
            "");
}

// Every wait ends soon after the flag is raised, whatever the rank waits for.
TEST(SharedMemory, AnAbortEndsEveryWait) {
  for (int32_t kind = 0; kind < static_cast<int32_t>(OperationKind::kCount); ++kind) {
    const SharedGroup group(3);
    as_threads(3, [&](int32_t rank) {
      if (rank == 2) {  // the one that fails before it joins the operation
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_TRUE(group.abort().raise(2, AbortPhase::kStep));
        return;
      }
      const auto comm = group.join(rank);
      Operation op{static_cast<OperationKind>(kind), 3, 2000, 0, 2, 0, 1};
      if (op.kind == OperationKind::kSendReceive && rank == 1) {
        op.from = 1;  // a send that fills the channel and is never received
        op.to = 2;
      }
      EXPECT_LT(time_until_abort(*comm, {rank, 3}, CpuStreamMode::kThreaded, op),
                std::chrono::seconds(1));
    });
    ASSERT_TRUE(group.abort().cause());
    EXPECT_EQ(group.abort().cause()->rank, 2);
    EXPECT_EQ(group.abort().cause()->phase, AbortPhase::kStep);
    EXPECT_FALSE(group.abort().raise(1, AbortPhase::kLoad)) << "the first cause stays";
  }
}

// The process of rank 1 is killed in the middle of an endless sequence of sums; its parent raises the flag.
TEST(SharedMemory, AKilledProcess) {
  WR_SKIP_FORKS();
  const SharedGroup group(3);
  const auto endless = [&](int32_t rank) {
    const auto comm = group.join(rank);
    const Operation op{OperationKind::kAllReduce, 1, 5000, 0, 0, 0, 1};
    while (!group.abort().raised()) {
      run_operations(*comm, {rank, 3}, CpuStreamMode::kThreaded, {op});
    }
  };
  const ChildProcess killed([&] {
    endless(1);
    return 0;
  });
  const ChildProcess other([&] {
    endless(0);
    return 0;
  });
  const ChildProcess another([&] {
    endless(2);
    return 0;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(killed.kill(), SIGKILL);
  const auto start = Clock::now();
  group.abort().raise(1, AbortPhase::kProcessEnded);
  EXPECT_EQ(other.wait(), 0);
  EXPECT_EQ(another.wait(), 0);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
}

TEST(SharedMemory, MisuseIsChecked) {
  const ScopedCheckThrows throws;
  const SharedGroup group(2);
  const auto comm = group.join(0);
  const auto device = make_test_device(CpuStreamMode::kInline);
  const auto stream = device->make_stream();
  std::vector<float> values(8);
  auto* bytes = reinterpret_cast<std::byte*>(values.data());
  EXPECT_THROW(comm->all_reduce(*stream, make_strided(values.data(), 2, 3, 4)), CheckFailure);
  EXPECT_THROW(comm->send(*stream, bytes, 4, 0), CheckFailure) << "to itself";
  EXPECT_THROW(comm->receive(*stream, bytes, 4, 2), CheckFailure) << "no such rank";
  EXPECT_THROW(comm->broadcast(*stream, bytes, 4, -1), CheckFailure);
  EXPECT_THROW(comm->exchange_columns(*stream,
                                      make_view(static_cast<const float*>(values.data()), 4, 1),
                                      make_view(values.data() + 4, 1, 2)),
               CheckFailure)
      << "a share of 4 rows is 2 rows";
  EXPECT_THROW((void)group.join(2), CheckFailure);
}

// A shape-only stream drops operations, so nobody waits for ranks that do not exist.
TEST(SharedMemory, AShapeOnlyStreamDropsOperations) {
  const auto shapes = make_shape_only_device({});
  const auto stream = shapes->make_stream();
  const SharedGroup group(2);
  float* nowhere = nullptr;
  const std::unique_ptr<Communicator> comms[] = {
      group.join(0), make_shape_only_communicator({0, 2}), make_alone()};
  for (const auto& comm : comms) {
    comm->all_reduce(*stream, make_view(nowhere, 4, 4));
    comm->all_gather(*stream, nullptr, nullptr, 100);
    comm->broadcast(*stream, nullptr, 100, 0);
    const int64_t rows = comm->place().share(4).size();
    comm->exchange_columns(
        *stream, make_view(static_cast<const float*>(nowhere), 4, 4), make_view(nowhere, rows, 4));
    stream->synchronize();
  }
}

// The words of a group wrap around after 2^32 operations.
TEST(ProgressWord, WrapsAround) {
  AbortFlag abort;
  Waiting waiting(abort);
  ProgressWord word;
  word.advance_to(0xfffffffe);
  EXPECT_TRUE(word.reached(0xfffffff0));
  EXPECT_FALSE(word.reached(3));
  const auto soon = Clock::now() + std::chrono::milliseconds(5);
  EXPECT_FALSE(waiting.until(word, 3, soon)) << "the deadline passes";
  std::thread other([&] { word.advance_to(4); });
  EXPECT_TRUE(waiting.until(word, 3));
  other.join();
}

TEST(GroupPlace, SharesCoverAllItems) {
  for (int32_t size = 1; size <= 5; ++size) {
    for (int64_t n = 0; n <= 12; ++n) {
      int64_t next = 0;
      for (int32_t rank = 0; rank < size; ++rank) {
        const GroupPlace place{rank, size};
        EXPECT_EQ(place.share(n).begin, next);
        EXPECT_LE(place.share(n).size(), place.largest_share(n));
        next = place.share(n).end;
      }
      EXPECT_EQ(next, n);
    }
  }
}

TEST(Alone, CopiesWhereThePlacesDiffer) {
  const auto alone = make_alone();
  EXPECT_EQ(
      run_operations(*alone, {0, 1}, CpuStreamMode::kDeferred, random_operations(2, 1, 100, 1000)),
      "");
}

TEST(SharedMemoryObject, IsMappedOverADescriptor) {
  const SharedMemory memory = SharedMemory::create(10000);
  memory.data()[9999] = std::byte{7};
  const SharedMemory again = SharedMemory::open(::dup(memory.fd()));
  EXPECT_EQ(again.bytes(), 10000U);
  EXPECT_EQ(again.data()[9999], std::byte{7});
  EXPECT_THROW(SharedMemory::open(-1), StartupError);
  EXPECT_THROW(SharedMemory::open_named("warprow.test.none"), StartupError);
}

}  // namespace
}  // namespace warprow::test
