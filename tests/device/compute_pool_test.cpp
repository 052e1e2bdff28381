// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/compute_pool.h"

#include "device/cpu/host_limits.h"
#include "tests/support/sanitizers.h"

#include <atomic>
#include <chrono>
#include <csignal>
#include <pthread.h>
#include <sched.h>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::cpu {
namespace {

TEST(ComputePool, EveryItemOnce) {
  for (const int32_t workers : {1, 2, 5}) {
    ComputePool pool(workers);
    for (const int64_t n : {0, 1, 7, 1000}) {
      for (const int64_t grain : {1, 3, 2000}) {
        std::vector<std::atomic<int>> hits(static_cast<size_t>(n));
        pool.parallel_for(n, grain, [&](int64_t begin, int64_t end, int32_t worker) {
          EXPECT_LT(worker, workers);
          for (int64_t i = begin; i < end; ++i) {
            ++hits[static_cast<size_t>(i)];
          }
        });
        for (const auto& hit : hits) {
          EXPECT_EQ(hit.load(), 1);
        }
      }
    }
  }
}

TEST(ComputePool, WorkersKeepToTheirCoresWhenAsked) {
  const std::vector<int32_t> cores = affinity_cores();
  ASSERT_FALSE(cores.empty());
  std::thread caller([&] {  // a thread of its own, because it stays pinned to its core
    ComputePool pool(3, cores);
    std::vector<std::atomic<int32_t>> where(3);
    std::atomic<int32_t> met{0};
    for (auto& core : where) {
      core = -1;
    }
    while (met.load() < 3) {
      pool.parallel_for(3, 1, [&](int64_t, int64_t, int32_t worker) {
        auto& mine = where[static_cast<size_t>(worker)];
        if (mine.load() < 0) {
          cpu_set_t set;
          EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
          EXPECT_EQ(CPU_COUNT(&set), 1);
          mine = sched_getcpu();
          ++met;
        }
        std::this_thread::yield();  // gives the other threads a turn
      });
    }
    for (size_t worker = 0; worker < where.size(); ++worker) {
      EXPECT_EQ(where[worker].load(), cores[worker % cores.size()]);
    }
  });
  caller.join();
  EXPECT_EQ(affinity_cores(), cores);
}

// Blocks a thread, as if its core were taken.
struct Hold {
  std::atomic<bool> begun{false};
  std::atomic<bool> over{false};
};
Hold& the_hold() {
  static Hold hold;
  return hold;
}
void hold_thread(int /*signal*/) {
  the_hold().begun.store(true);
  while (!the_hold().over.load()) {
  }
}

// The pool's second thread.
pthread_t find_worker(ComputePool& pool) {
  std::atomic<bool> found{false};
  pthread_t thread{};
  while (!found.load()) {
    pool.parallel_for(2, 1, [&](int64_t, int64_t, int32_t worker) {
      if (worker == 1) {
        thread = pthread_self();
        found.store(true);
      } else if (!found.load()) {
        std::this_thread::yield();
      }
    });
  }
  return thread;
}

TEST(ComputePool, AWorkerWhoseCoreIsTakenIsNotWaitedFor) {
#if WR_TSAN
  GTEST_SKIP() << "ThreadSanitizer delivers a signal at the thread's next libc call, and a waiting "
                  "worker may make none";
#endif
  ComputePool pool(2);
  const pthread_t worker = find_worker(pool);
  Hold& hold = the_hold();  // constructed before a signal handler needs it
  hold.begun.store(false);
  hold.over.store(false);
  struct sigaction action = {};
  struct sigaction before = {};
  action.sa_handler = hold_thread;
  ASSERT_EQ(sigaction(SIGUSR1, &action, &before), 0);
  // If calls wait for the worker, it is released after a while and the test fails.
  std::atomic<bool> ended{false};
  std::thread watchdog([&] {
    for (int i = 0; i < 2000 && !ended.load(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    hold.over.store(true);
  });
  ASSERT_EQ(pthread_kill(worker, SIGUSR1), 0);
  while (!hold.begun.load() && !hold.over.load()) {
    std::this_thread::yield();
  }
  int64_t items = 0;  // all items run on this thread
  for (int call = 0; call < 1000; ++call) {
    pool.parallel_for(10, 1, [&](int64_t begin, int64_t end, int32_t by) {
      EXPECT_EQ(by, 0);
      items += end - begin;
    });
  }
  EXPECT_EQ(items, 10000);
  EXPECT_TRUE(hold.begun.load());
  EXPECT_FALSE(hold.over.load()) << "calls waited for the worker";
  ended.store(true);
  watchdog.join();
  sigaction(SIGUSR1, &before, nullptr);
}

}  // namespace
}  // namespace warprow::cpu
