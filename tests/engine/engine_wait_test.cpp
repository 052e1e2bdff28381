// SPDX-License-Identifier: Apache-2.0
// What wakes the waiting engine, and what it does while idle.
#include "engine/engine.h"
#include "tests/engine/toy_engine.h"

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::Client;
using testing::FakeModel;
using testing::greedy_request;
using testing::long_request;
using testing::make_toy_engine;

// If the executor notifies of outputs, a command need not wait for the device.
TEST(EngineWait, ACommandIsSeenWhileAnOutputIsAwaited) {
  std::atomic<bool> shut = true;
  Client client;
  FakeModel model;
  model.gate_shut = &shut;
  model.notifies_outputs = true;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  const RequestId first = client.submit(*engine, long_request());
  const auto listed = engine->list_requests(seconds(30));
  ASSERT_TRUE(listed);
  EXPECT_EQ(listed->size(), 1U);
  engine->abort(first);
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kAbort);
  shut = false;
}

TEST(EngineWait, OutputsAreTakenAsTheyAreNotified) {
  Client client;
  FakeModel model;
  model.notifies_outputs = true;
  model.step_time = milliseconds(1);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  std::mt19937 random(5);
  testing::check_answers(
      client,
      *engine,
      20,
      [&] { return testing::random_toy_request(random); },
      [](const testing::Told& told, const RequestFields& fields) {
        EXPECT_EQ(told.token_ids, testing::toy_answer(fields).token_ids);
      });
}

// This engine has no requests, but ranks of other engines wait for it in collectives.
TEST(EngineWait, AnIdleEngineRunsEmptyStepsAsLongAsTheyAreWanted) {
  std::atomic<int> wanted = 5;
  Client client;
  FakeModel model;
  model.empty_steps_wanted = &wanted;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  while (wanted > 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  wanted = 3;  // seen at the next wake-up: here a request, whose steps are not empty
  client.submit(*engine, greedy_request({9, 3, 4}, 6));
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kLength);
  while (wanted > 0) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_EQ(wanted, 0);
  ASSERT_TRUE(engine->sleep(1));
  wanted = 2;
  EXPECT_TRUE(engine->list_requests(seconds(30)));
  EXPECT_EQ(wanted, 2) << "no step runs while the engine sleeps";
  wanted = 0;
}

}  // namespace
}  // namespace warprow
