// SPDX-License-Identifier: Apache-2.0
#include "base/wake_up.h"

#include <atomic>
#include <chrono>
#include <thread>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Clock = WakeUp::Clock;
constexpr std::chrono::hours kForever{1};

TEST(WakeUp, NewsBeforeTheWaitAreNotMissed) {
  WakeUp wake_up;
  wake_up.notify();
  wake_up.notify();  // two notifications before a wait count as one
  wake_up.wait();
  EXPECT_FALSE(wake_up.wait_until(Clock::now()));
}

TEST(WakeUp, ATimerEndsTheWait) {
  WakeUp wake_up;
  const Clock::time_point when = Clock::now() + std::chrono::milliseconds(2);
  EXPECT_FALSE(wake_up.wait_until(when));
  EXPECT_GE(Clock::now(), when);
}

TEST(WakeUp, AnotherThreadEndsTheWait) {
  WakeUp wake_up;
  std::atomic<bool> news = false;
  std::jthread other([&] {
    news = true;
    wake_up.notify();
  });
  EXPECT_TRUE(wake_up.wait_until(Clock::now() + kForever));
  EXPECT_TRUE(news);
}

}  // namespace
}  // namespace warprow
