// SPDX-License-Identifier: Apache-2.0
#include "server/answer_lane.h"

#include "server/answer_pool.h"

#include <atomic>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;

// Records the jobs that have run, and has a gate that blocks jobs.
class Log {
 public:
  std::function<void()> job(const std::string& name) {
    return [this, name] {
      const std::scoped_lock lock(mutex_);
      names_.push_back(name);
    };
  }
  // Returns when the job's first part has run. The job ends once the gate is open.
  void hold(AnswerLane& lane, const std::string& client) {
    std::promise<void> begun;
    std::future<void> has_begun = begun.get_future();
    ASSERT_TRUE(lane.submit(client, [this, &begun] {
      begun.set_value();
      open_.wait();
    }));
    has_begun.wait();
  }
  void open() { gate_.set_value(); }
  [[nodiscard]] std::vector<std::string> names() {
    const std::scoped_lock lock(mutex_);
    return names_;
  }

 private:
  std::promise<void> gate_;
  std::shared_future<void> open_ = gate_.get_future().share();
  std::mutex mutex_;
  std::vector<std::string> names_;
};

TEST(AnswerLane, ClientsTakeTurns) {
  Log log;
  {
    AnswerLane lane({.num_threads = 1});
    log.hold(lane, "z");
    for (const char* name : {"a1", "a2", "a3", "b1", "b2", "c1"}) {
      ASSERT_TRUE(lane.submit(std::string(1, name[0]), log.job(name)));
    }
    log.open();
  }
  EXPECT_THAT(log.names(), ElementsAre("a1", "b1", "c1", "a2", "b2", "a3"));
}

TEST(AnswerLane, WhatWaitsIsBoundedInAllAndForAClient) {
  Log log;
  {
    AnswerLane lane({.num_threads = 1, .most_waiting = 3, .most_waiting_of_client = 2});
    log.hold(lane, "a");
    EXPECT_TRUE(lane.submit("a", log.job("a1")));
    EXPECT_TRUE(lane.submit("a", log.job("a2")));
    EXPECT_FALSE(lane.submit("a", log.job("a3")));
    EXPECT_TRUE(lane.submit("b", log.job("b1")));
    EXPECT_FALSE(lane.submit("c", log.job("c1")));
    log.open();
  }
  EXPECT_THAT(log.names(), ElementsAre("a1", "b1", "a2"));
}

TEST(AnswerLane, AClientLeavesAThreadToOthers) {
  Log log;
  {
    AnswerLane lane({.num_threads = 2, .most_running_of_client = 1});
    log.hold(lane, "a");
    ASSERT_TRUE(lane.submit("a", log.job("a1")));
    std::promise<void> done;
    ASSERT_TRUE(lane.submit("b", [&] { done.set_value(); }));
    done.get_future().wait();  // blocks forever if a1 kept the other thread's turn
    EXPECT_THAT(log.names(), ElementsAre());
    log.open();
  }
  EXPECT_THAT(log.names(), ElementsAre("a1"));
}

TEST(AnswerPool, NoLaneWaitsForAnother) {
  std::promise<void> gate;
  const std::shared_future<void> open = gate.get_future().share();
  AnswerPool pool(100, 100);
  for (int i = 0; i < 50; ++i) {
    ASSERT_TRUE(
        pool.submit(AnswerPool::Lane::kLargeText, std::to_string(i), [open] { open.wait(); }));
    ASSERT_TRUE(pool.submit(AnswerPool::Lane::kCommand, "a", [open] { open.wait(); }));
  }
  for (const AnswerPool::Lane lane : {AnswerPool::Lane::kSmallText, AnswerPool::Lane::kReport}) {
    std::promise<void> done;
    ASSERT_TRUE(pool.submit(lane, "a", [&] { done.set_value(); }));
    done.get_future().wait();
  }
  gate.set_value();
}

}  // namespace
}  // namespace warprow
