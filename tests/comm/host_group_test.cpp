// SPDX-License-Identifier: Apache-2.0
#include "comm/host_group.h"

#include "base/error.h"
#include "comm/share_memory.h"
#include "comm/shared_host_group.h"
#include "tests/comm/ranks.h"
#include "tests/comm/tcp_run.h"

#include <atomic>
#include <filesystem>
#include <unistd.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;

// Ranks whose host groups are of one transport.
class Transport {
 public:
  virtual ~Transport() = default;
  virtual std::unique_ptr<HostGroup> join(int32_t rank, milliseconds patience) = 0;
  virtual AbortFlag& flag(int32_t rank) = 0;
};

class SharedTransport final : public Transport {
 public:
  explicit SharedTransport(int32_t size)
      : size_(size), memory_(SharedMemory::create(shared_host_group_bytes(size))) {}
  std::unique_ptr<HostGroup> join(int32_t rank, milliseconds patience) override {
    return make_shared_host_group({rank, size_}, memory_.data(), flag_, patience);
  }
  AbortFlag& flag(int32_t /*rank*/) override { return flag_; }

 private:
  int32_t size_;
  AbortFlag flag_;
  SharedMemory memory_;
};

class TcpTransport final : public Transport {
 public:
  explicit TcpTransport(int32_t size) : run_(size) {}
  std::unique_ptr<HostGroup> join(int32_t rank, milliseconds patience) override {
    return run_.join(rank, flag(rank), patience);
  }
  // Each rank has its own, as on hosts of their own.
  AbortFlag& flag(int32_t rank) override { return flags_[rank]; }

 private:
  TcpRun run_;
  AbortFlag flags_[4];
};

std::unique_ptr<Transport> make_transport(const std::string& name, int32_t size) {
  if (name == "tcp") {
    return std::make_unique<TcpTransport>(size);
  }
  return std::make_unique<SharedTransport>(size);
}

std::string blob(int32_t rank, int32_t call) {
  const size_t sizes[] = {0, 1, 65527, 65528, 65529, 300000};
  const auto at = static_cast<size_t>(rank + call) % std::size(sizes);
  std::string text(sizes[at], static_cast<char>('a' + rank));
  if (!text.empty()) {
    text.back() = static_cast<char>('0' + call % 10);
  }
  return text;
}

// What a rank's start-up says when it fails.
std::string failure_of(const std::function<void()>& start) {
  try {
    start();
    return "";
  } catch (const StartupError& error) {
    return error.what();
  }
}

class HostGroups : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Transports, HostGroups, ::testing::Values("shared", "tcp"));

TEST_P(HostGroups, ExchangeStringsOfAnySize) {
  for (const int32_t size : {1, 2, 4}) {
    const auto transport = make_transport(GetParam(), size);
    as_threads(size, [&](int32_t rank) {
      const auto group = transport->join(rank, std::chrono::seconds(20));
      for (int32_t call = 0; call < 12; ++call) {
        const auto all = group->exchange(blob(rank, call));
        ASSERT_EQ(all.size(), static_cast<size_t>(size));
        for (int32_t other = 0; other < size; ++other) {
          EXPECT_EQ(all[static_cast<size_t>(other)], blob(other, call));
        }
      }
    });
  }
}

TEST_P(HostGroups, ABarrierWaitsForAll) {
  const auto transport = make_transport(GetParam(), 3);
  std::atomic<int32_t> arrived = 0;
  as_threads(3, [&](int32_t rank) {
    const auto group = transport->join(rank, std::chrono::seconds(20));
    for (int32_t call = 1; call <= 20; ++call) {
      ++arrived;
      group->barrier();
      EXPECT_GE(arrived, 3 * call);
      group->barrier();
    }
  });
}

TEST_P(HostGroups, ADeadlineNamesTheRanksThatAreMissing) {
  const auto transport = make_transport(GetParam(), 4);
  std::atomic<bool> over = false;
  as_threads(4, [&](int32_t rank) {
    const auto group = transport->join(rank, rank == 0 ? milliseconds(300) : milliseconds(20000));
    if (rank == 0) {
      EXPECT_EQ(failure_of([&] { group->exchange("x"); }),
                "rank 0 of 4 waited 300ms for ranks 1 and 3");
      over = true;
      transport->flag(0).raise(0, AbortPhase::kStart);
    } else if (rank == 2) {
      EXPECT_EQ(failure_of([&] { group->exchange("y"); }), "rank 2: rank 0 failed at start");
    } else {
      while (!over) {
        std::this_thread::sleep_for(milliseconds(1));
      }
    }
  });
}

TEST_P(HostGroups, AnAbortEndsACall) {
  const auto transport = make_transport(GetParam(), 3);
  as_threads(3, [&](int32_t rank) {
    const auto group = transport->join(rank, std::chrono::seconds(20));
    if (rank == 1) {
      std::this_thread::sleep_for(milliseconds(20));
      transport->flag(1).raise(1, AbortPhase::kLoad);
      std::this_thread::sleep_for(milliseconds(200));  // its connections stay open
      return;
    }
    const auto start = Clock::now();
    EXPECT_EQ(failure_of([&] { group->barrier(); }),
              fmt::format("rank {}: rank 1 failed while loading", rank));
    EXPECT_LT(Clock::now() - start, std::chrono::seconds(1));
  });
}

TEST_P(HostGroups, AreSharedByProcesses) {
  WR_SKIP_FORKS();
  const auto transport = make_transport(GetParam(), 3);
  EXPECT_EQ(as_processes(3,
                         [&](int32_t rank) {
                           const auto group = transport->join(rank, std::chrono::seconds(20));
                           for (int32_t call = 0; call < 10; ++call) {
                             const auto all = group->exchange(blob(rank, call));
                             for (int32_t other = 0; other < 3; ++other) {
                               if (all[static_cast<size_t>(other)] != blob(other, call)) {
                                 return fmt::format("call {}: rank {}", call, other);
                               }
                             }
                           }
                           return std::string();
                         }),
            "");
}

// Two groups of a run; the names are gone afterwards.
TEST_P(HostGroups, ShareMemoryByName) {
  const auto names = [] {
    int32_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
      count += entry.path().filename().string().starts_with(fmt::format("warprow.{}.", ::getpid()));
    }
    return count;
  };
  const auto transport = make_transport(GetParam(), 4);
  as_threads(4, [&](int32_t rank) {
    const auto group = transport->join(rank, std::chrono::seconds(20));
    const int32_t first = rank % 2;
    const SharedMemory memory = share_memory(*group, {first, first + 2}, 5000);
    ASSERT_EQ(memory.bytes(), 5000U);
    EXPECT_EQ(memory.data()[100], std::byte{0});
    group->barrier();
    EXPECT_EQ(names(), 0);
    if (rank == first) {
      memory.data()[100] = static_cast<std::byte>(rank + 1);
    }
    group->barrier();
    EXPECT_EQ(memory.data()[100], static_cast<std::byte>(first + 1));
  });
}

TEST_P(HostGroups, MemoryThatDoesNotFitIsRefusedOnAllRanks) {
  const auto transport = make_transport(GetParam(), 2);
  as_threads(2, [&](int32_t rank) {
    const auto group = transport->join(rank, std::chrono::seconds(20));
    EXPECT_THAT(failure_of([&] { share_memory(*group, {0, 1}, size_t{1} << 60); }),
                HasSubstr("cannot share 1152921504606846976 bytes"));
  });
}

// --- Finding each other over TCP ---------------------------------------------------------------------------------

struct Start {
  Rendezvous where;
  milliseconds patience = std::chrono::seconds(20);
};

// Each rank's failure.
std::vector<std::string> failures_of(TcpRun& run, const std::vector<Start>& starts) {
  std::vector<std::string> failures(starts.size());
  as_threads(static_cast<int32_t>(starts.size()), [&](int32_t i) {
    const auto at = static_cast<size_t>(i);
    AbortFlag abort;
    failures[at] = failure_of([&] { run.join(starts[at].where, abort, starts[at].patience); });
  });
  return failures;
}

TEST(Rendezvous, AWrongNumberOfRanks) {
  TcpRun run(2);
  const auto failures = failures_of(
      run,
      {{{"127.0.0.1", run.port(), "a run", {0, 2}}}, {{"127.0.0.1", run.port(), "a run", {1, 3}}}});
  const std::string why = "rank 1 was started for 3 ranks and rank 0 for 2";
  EXPECT_EQ(failures[0], fmt::format("rank 0 at port {}: {}", run.port(), why));
  EXPECT_EQ(failures[1],
            fmt::format("rank 1 was refused by rank 0 at 127.0.0.1:{}: {}", run.port(), why));
}

TEST(Rendezvous, ARankThatIsThereTwice) {
  TcpRun run(3);
  const auto failures = failures_of(run,
                                    {{{"127.0.0.1", run.port(), "a run", {0, 3}}},
                                     {{"127.0.0.1", run.port(), "a run", {1, 3}}},
                                     {{"127.0.0.1", run.port(), "a run", {1, 3}}}});
  for (const std::string& failure : failures) {
    EXPECT_THAT(failure, HasSubstr("rank 1 is there twice, the first at 127.0.0.1"));
  }
}

TEST(Rendezvous, ASecondRank0) {
  TcpRun run(2);
  AbortFlag abort;
  std::thread first([&] {
    EXPECT_THAT(failure_of([&] {
                  AbortFlag own;
                  run.join({"127.0.0.1", run.port(), "a run", {0, 2}}, own, milliseconds(300));
                }),
                HasSubstr("rank 1 of 2 did not come within 300ms"));
  });
  EXPECT_THAT(failure_of([&] {
                TcpHostGroup({"127.0.0.1", run.port(), "a run", {0, 2}}, abort, milliseconds(300));
              }),
              HasSubstr(fmt::format("cannot listen for ranks on port {}", run.port())));
  first.join();
}

TEST(Rendezvous, AnotherRunIsRefusedAndThisOneGoesOn) {
  TcpRun run(2);
  std::atomic<bool> refused = false;
  as_threads(3, [&](int32_t i) {
    AbortFlag abort;
    if (i == 2) {
      EXPECT_THAT(
          failure_of([&] {
            run.join({"127.0.0.1", run.port(), "another", {1, 2}}, abort, std::chrono::seconds(5));
          }),
          HasSubstr("it is of run 'another', not of 'a run'"));
      refused = true;
      return;
    }
    while (i == 1 && !refused) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    const auto group =
        run.join({"127.0.0.1", run.port(), "a run", {i, 2}}, abort, std::chrono::seconds(20));
    group->barrier();
  });
}

TEST(Rendezvous, NobodyListens) {
  TcpRun run(2);
  run.stop_listening();
  AbortFlag abort;
  EXPECT_EQ(failure_of([&] { run.join(1, abort, milliseconds(150)); }),
            fmt::format("rank 1 of 2 found no rank 0 at 127.0.0.1:{} within 150ms: Connection "
                        "refused",
                        run.port()));
  EXPECT_THAT(failure_of([&] {
                run.join(
                    {"no.such.host.invalid", run.port(), "", {1, 2}}, abort, milliseconds(150));
              }),
              HasSubstr("found no rank 0 at no.such.host.invalid"));
}

TEST(Rendezvous, RanksThatDoNotCome) {
  TcpRun run(4);
  const auto failures =
      failures_of(run,
                  {{{"127.0.0.1", run.port(), "a run", {0, 4}}, milliseconds(200)},
                   {{"127.0.0.1", run.port(), "a run", {2, 4}}}});
  const std::string why = "ranks 1 and 3 of 4 did not come within 200ms";
  EXPECT_EQ(failures[0], fmt::format("rank 0 at port {}: {}", run.port(), why));
  EXPECT_EQ(failures[1],
            fmt::format("rank 2 was refused by rank 0 at 127.0.0.1:{}: {}", run.port(), why));
}

TEST(Rendezvous, AnAbortEndsIt) {
  TcpRun run(2);
  AbortFlag abort;
  std::thread raiser([&] {
    std::this_thread::sleep_for(milliseconds(50));
    abort.raise(1, AbortPhase::kStart);
  });
  EXPECT_EQ(failure_of([&] { run.join(0, abort); }), "rank 0: rank 1 failed at start");
  raiser.join();
}

// Rank 0 starts last, and a stranger talks to it first.
TEST(Rendezvous, LateRank0AndAStranger) {
  TcpRun run(2);
  run.stop_listening();
  const Rendezvous where{"localhost", run.port(), "a run", {0, 2}};
  as_threads(3, [&](int32_t i) {
    AbortFlag abort;
    if (i == 2) {
      const Patience patience{Clock::now() + std::chrono::seconds(5), &abort};
      std::string why_not;
      Socket socket;
      while (!(socket = connect_once("127.0.0.1", run.port(), patience, why_not)).valid()) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      send_string(socket, std::string(1000, 'x'), patience);
      return;
    }
    if (i == 0) {
      std::this_thread::sleep_for(milliseconds(150));
    }
    Rendezvous mine = where;
    mine.place.rank = i;
    const TcpHostGroup group(mine, abort, std::chrono::seconds(20));
  });
}

// A rank of a build that speaks another version is told so.
TEST(Rendezvous, AnotherVersion) {
  TcpRun run(2);
  as_threads(2, [&](int32_t i) {
    AbortFlag abort;
    if (i == 0) {
      EXPECT_THAT(
          failure_of([&] { run.join(0, abort, milliseconds(300)); }),
          HasSubstr("rank 1 of 2 did not come within 300ms; 127.0.0.1 was refused: it speaks "
                    "version 99 of the protocol between ranks, not 1"));
      return;
    }
    const Patience patience{Clock::now() + std::chrono::seconds(5), &abort};
    std::string why_not;
    const Socket socket = connect_once("127.0.0.1", run.port(), patience, why_not);
    const struct {
      char magic[8];
      uint32_t version;
    } opening = {{'w', 'a', 'r', 'p', 'r', 'a', 'n', 'k'}, 99};
    EXPECT_EQ(send_value(socket, opening, patience), SocketResult::kDone);
    uint64_t mark = 0;
    std::string refusal;
    EXPECT_EQ(receive_value(socket, mark, patience), SocketResult::kDone);
    EXPECT_EQ(receive_string(socket, refusal, patience), SocketResult::kDone);
    EXPECT_THAT(refusal, HasSubstr("it speaks version 99"));
  });
}

TEST(Rendezvous, AbsurdRunId) {
  AbortFlag abort;
  EXPECT_THAT(failure_of([&] {
                TcpHostGroup(
                    {"127.0.0.1", 1, std::string(128, 'x'), {0, 1}}, abort, milliseconds(1));
              }),
              HasSubstr("the run id has 128 characters, at most 127"));
}

}  // namespace
}  // namespace warprow::test
