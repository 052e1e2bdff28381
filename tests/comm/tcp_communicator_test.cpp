// SPDX-License-Identifier: Apache-2.0
#include "comm/cpu/tcp_communicator.h"

#include "base/check.h"
#include "base/error.h"
#include "tests/comm/ranks.h"
#include "tests/comm/tcp_run.h"

#include <numeric>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

using cpu::CpuStreamMode;

std::vector<int32_t> all_ranks(int32_t size) {
  std::vector<int32_t> ranks(static_cast<size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

struct TcpCase {
  CpuStreamMode mode;
  int32_t size;
};
class TcpRanks : public ::testing::TestWithParam<TcpCase> {};
INSTANTIATE_TEST_SUITE_P(Modes,
                         TcpRanks,
                         ::testing::Values(TcpCase{CpuStreamMode::kThreaded, 1},
                                           TcpCase{CpuStreamMode::kThreaded, 2},
                                           TcpCase{CpuStreamMode::kThreaded, 4},
                                           TcpCase{CpuStreamMode::kInline, 3},
                                           TcpCase{CpuStreamMode::kDeferred, 3}));

TEST_P(TcpRanks, ThousandsOfRandomOperations) {
  const CpuStreamMode mode = GetParam().mode;
  const int32_t size = GetParam().size;
  TcpRun run(size);
  const auto operations =
      random_operations(11 + static_cast<uint64_t>(size), size, kManyOperations / 2, 50000);
  as_threads(size, [&](int32_t rank) {
    AbortFlag abort;
    const auto group = run.join(rank, abort);
    const auto comm = make_tcp_communicator(*group, all_ranks(size));
    EXPECT_EQ(run_operations(*comm, {rank, size}, mode, operations), "");
    group->barrier();
    EXPECT_FALSE(abort.raised());
  });
}

TEST_P(TcpRanks, GraphsReplay) {
  const CpuStreamMode mode = GetParam().mode;
  const int32_t size = GetParam().size;
  TcpRun run(size);
  const auto operations = random_operations(5, size, 40, 30000);
  as_threads(size, [&](int32_t rank) {
    AbortFlag abort;
    const auto group = run.join(rank, abort);
    const auto comm = make_tcp_communicator(*group, all_ranks(size));
    EXPECT_EQ(replay_operations(*comm, {rank, size}, mode, operations, 10), "");
  });
}

// Sums of several chunks, and around the size at which they are divided.
TEST(Tcp, LargeSums) {
  std::vector<Operation> operations;
  for (const int64_t n : {16384, 16385, (1 << 20) + 7}) {
    operations.push_back({.kind = OperationKind::kAllReduce, .width = n, .seed = 3});
  }
  for (const int32_t size : {2, 3}) {
    TcpRun run(size);
    as_threads(size, [&](int32_t rank) {
      AbortFlag abort;
      const auto group = run.join(rank, abort);
      const auto comm = make_tcp_communicator(*group, all_ranks(size));
      EXPECT_EQ(run_operations(*comm, {rank, size}, CpuStreamMode::kThreaded, operations), "");
    });
  }
}

// Two groups of two ranks in a run of four.
TEST(Tcp, GroupsOfARun) {
  TcpRun run(4);
  const auto operations = random_operations(9, 2, 100, 1000);
  as_threads(4, [&](int32_t rank) {
    AbortFlag abort;
    const auto group = run.join(rank, abort);
    const auto comm = make_tcp_communicator(*group, {rank % 2, rank % 2 + 2});
    EXPECT_EQ(comm->place().rank, rank / 2);
    EXPECT_EQ(comm->place().size, 2);
    EXPECT_EQ(run_operations(*comm, comm->place(), CpuStreamMode::kThreaded, operations), "");
  });
}

TEST(Tcp, RanksAreProcesses) {
  WR_SKIP_FORKS();
  const int32_t size = 3;
  TcpRun run(size);
  const auto operations = random_operations(3, size, 500, 20000);
  EXPECT_EQ(as_processes(size,
                         [&](int32_t rank) {
                           AbortFlag abort;
                           const auto group = run.join(rank, abort);
                           const auto comm = make_tcp_communicator(*group, all_ranks(size));
                           return run_operations(
                               *comm, {rank, size}, CpuStreamMode::kThreaded, operations);
                         }),
            "");
}

// Each rank has a flag of its own, as on hosts of their own. The cause reaches all of them.
TEST(Tcp, AnAbortEndsEveryWait) {
  for (int32_t kind = 0; kind < static_cast<int32_t>(OperationKind::kCount); ++kind) {
    TcpRun run(3);
    as_threads(3, [&](int32_t rank) {
      AbortFlag abort;
      const auto group = run.join(rank, abort);
      const auto comm = make_tcp_communicator(*group, all_ranks(3));
      if (rank == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        EXPECT_TRUE(abort.raise(2, AbortPhase::kStep));
        std::this_thread::sleep_for(std::chrono::milliseconds(200));  // its connections stay open
        return;
      }
      Operation op{static_cast<OperationKind>(kind), 3, 30'000, 0, 2, 0, 1};
      if (op.kind == OperationKind::kSendReceive && rank == 1) {
        op = {OperationKind::kSendReceive, 1, 5'000'000, 0, 1, 2, 1};  // more than is buffered
      }
      EXPECT_LT(time_until_abort(*comm, {rank, 3}, CpuStreamMode::kInline, op),
                std::chrono::seconds(1));
      ASSERT_TRUE(abort.cause());
      EXPECT_EQ(abort.cause()->rank, 2);
      EXPECT_EQ(abort.cause()->phase, AbortPhase::kStep);
    });
  }
}

// Nobody raises a flag: the ranks notice the end of the process themselves.
TEST(Tcp, AKilledProcess) {
  WR_SKIP_FORKS();
  TcpRun run(3);
  const auto endless = [&](int32_t rank) {
    AbortFlag abort;
    const auto group = run.join(rank, abort);
    const auto comm = make_tcp_communicator(*group, all_ranks(3));
    const Operation op{OperationKind::kAllReduce, 1, 50000, 0, 0, 0, 1};
    while (!abort.raised()) {
      run_operations(*comm, {rank, 3}, CpuStreamMode::kThreaded, {op});
    }
    return abort.cause()->rank;
  };
  const ChildProcess first([&] { return endless(0); });
  const ChildProcess killed([&] { return endless(1); });
  const ChildProcess third([&] { return endless(2); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(killed.kill(), SIGKILL);
  const auto start = Clock::now();
  EXPECT_EQ(first.wait(), 1) << "the rank that ended";
  EXPECT_EQ(third.wait(), 1);
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
}

// The end of a process that is in no operation is noticed too; a farewell is not an end.
TEST(AbortWatch, NoticesAnEndOutsideOfOperations) {
  WR_SKIP_FORKS();
  TcpRun run(2);
  const ChildProcess other([&] {
    AbortFlag abort;
    const auto group = run.join(1, abort);
    group->barrier();
    std::this_thread::sleep_for(std::chrono::seconds(10));
    return 0;
  });
  AbortFlag abort;
  const auto group = run.join(0, abort);
  group->barrier();
  EXPECT_EQ(other.kill(), SIGKILL);
  const auto start = Clock::now();
  while (!abort.raised() && Clock::now() - start < std::chrono::seconds(2)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
  ASSERT_TRUE(abort.cause());
  EXPECT_EQ(abort.cause()->rank, 1);
  EXPECT_EQ(abort.cause()->phase, AbortPhase::kProcessEnded);
}

TEST(AbortWatch, AFarewellIsNoAbort) {
  TcpRun run(2);
  as_threads(2, [&](int32_t rank) {
    AbortFlag abort;
    const auto group = run.join(rank, abort);
    if (rank == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(150));
      EXPECT_FALSE(abort.raised());
    }
  });
}

}  // namespace
}  // namespace warprow::test
