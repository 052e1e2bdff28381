// SPDX-License-Identifier: Apache-2.0
// The effect of sleep and wake-up on requests. tests/sim/sleep_test.cpp tests the memory.
#include "engine/engine.h"
#include "tests/engine/toy_engine.h"

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::Client;
using testing::FakeModel;
using testing::greedy_request;
using testing::long_request;
using testing::make_toy_engine;

TEST(Sleep, EndsWhatRunsAndWhatWaits) {
  Client client;
  FakeModel model;
  model.max_num_seqs = 2;
  model.step_time = std::chrono::milliseconds(10);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  for (int i = 0; i < 5; ++i) {
    client.submit(*engine, long_request());
  }
  client.wait_for_tokens(1, 3);
  EXPECT_FALSE(engine->is_sleeping());
  ASSERT_TRUE(engine->sleep(1));
  EXPECT_TRUE(engine->is_sleeping());
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(client.wait(i).last.finish_reason, FinishReason::kAbort) << i;
    EXPECT_EQ(client.wait(i).num_final, 1);
  }
}

TEST(Sleep, AtLevelOneRequestsWaitForTheWakeUp) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  ASSERT_TRUE(engine->sleep(1));
  client.submit(*engine, long_request());
  const RequestId aborted = client.submit(*engine, long_request());
  engine->abort(aborted);
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kAbort);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(engine->stats().steps, 0);
  ASSERT_TRUE(engine->wake_up({"weights"}));
  EXPECT_TRUE(engine->is_sleeping());
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  EXPECT_EQ(engine->stats().steps, 0);
  ASSERT_TRUE(engine->wake_up({"kv_cache"}));
  EXPECT_FALSE(engine->is_sleeping());
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kLength);
}

TEST(Sleep, AtLevelTwoRequestsAreRefusedUntilTheWeightsAreBack) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  Result<ValidRequest> validated_before = engine->validate(long_request());
  ASSERT_TRUE(engine->sleep(2));
  const Result<ValidRequest> refused = engine->validate(long_request());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("wake it up"), std::string::npos);
  client.submit(*engine, *std::move(validated_before));
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kError);
  EXPECT_EQ(client.wait(0).last.error, refused.error().message);
  ASSERT_TRUE(engine->wake_up({"kv_cache"}));
  EXPECT_FALSE(engine->validate(long_request()));
  ASSERT_TRUE(engine->wake_up({"weights"}));
  client.submit(*engine, long_request());
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kLength);
}

TEST(Sleep, MistakesAreNamed) {
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  EXPECT_NE(engine->sleep(3).error().message.find("level 3"), std::string::npos);
  EXPECT_NE(engine->wake_up({"wieghts"}).error().message.find("'wieghts'"), std::string::npos);
  EXPECT_TRUE(engine->wake_up({}));  // nothing is asleep
  EXPECT_TRUE(engine->sleep(1));
  EXPECT_NE(engine->sleep(2).error().message.find("already"), std::string::npos);
  EXPECT_TRUE(engine->wake_up({}));
  EXPECT_FALSE(engine->is_sleeping());
}

TEST(Sleep, ShutdownOfASleepingEngineEndsWhoWaits) {
  Client client;
  {
    const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
    ASSERT_TRUE(engine->sleep(1));
    client.submit(*engine, long_request());
  }
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kAbort);
}

// After an engine has failed, no call blocks forever.
TEST(Sleep, AFailedEngineSaysSo) {
  Client client;
  FakeModel model;
  model.throw_at_step = 1;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  client.submit(*engine, long_request());
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kError);
  EXPECT_FALSE(engine->sleep(1));
}

TEST(Pause, KeptRequestsGoOnWhereTheyWere) {
  Client client;
  FakeModel model;
  model.step_time = std::chrono::milliseconds(2);
  std::vector<TokenId> wanted;
  {
    const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
    client.submit(*engine, long_request());
    wanted = client.wait(0).token_ids;
  }
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  client.submit(*engine, long_request());
  client.wait_for_tokens(1, 3);
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kKeep));
  EXPECT_TRUE(engine->is_paused());
  const int64_t steps = engine->stats().steps;
  client.submit(*engine, long_request());
  const RequestId aborted = client.submit(*engine, long_request());
  engine->abort(aborted);
  EXPECT_EQ(client.wait(3).last.finish_reason, FinishReason::kAbort);
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kKeep)) << "once more changes nothing";
  EXPECT_EQ(engine->stats().steps, steps);
  ASSERT_TRUE(engine->resume());
  EXPECT_FALSE(engine->is_paused());
  for (const size_t i : {1, 2}) {
    EXPECT_EQ(client.wait(i).last.finish_reason, FinishReason::kLength);
    EXPECT_EQ(client.wait(i).token_ids, wanted) << i;
  }
}

TEST(Pause, WaitsForTheRequestsOfNow) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  client.submit(*engine, long_request());
  client.wait_for_tokens(0, 1);
  std::thread waiting([&] { EXPECT_TRUE(engine->pause(Engine::PauseMode::kWait)); });
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kLength);
  waiting.join();
  EXPECT_TRUE(engine->is_paused());
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kWait)) << "at once";
  const int64_t steps = engine->stats().steps;
  client.submit(*engine, long_request());
  EXPECT_EQ(engine->stats().steps, steps);
  ASSERT_TRUE(engine->resume());
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kLength);
}

// The model takes its time, so that the request surely runs when both pauses begin. One of them waits.
TEST(Pause, NewRequestsWaitOutside) {
  FakeModel model;
  model.step_time = std::chrono::milliseconds(10);
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  client.submit(*engine, long_request());
  client.wait_for_tokens(0, 1);
  const auto pause = [&] { return engine->pause(Engine::PauseMode::kWait); };
  std::future<Result<void>> pauses[] = {std::async(std::launch::async, pause),
                                        std::async(std::launch::async, pause)};
  const auto done = [](std::future<Result<void>>& one) {
    return one.wait_for(std::chrono::milliseconds(1)) == std::future_status::ready;
  };
  while (!done(pauses[0]) && !done(pauses[1])) {
  }
  const size_t refused = done(pauses[0]) ? 0 : 1;
  EXPECT_EQ(pauses[refused].get().error().code, ErrorCode::kBusy);
  client.submit(*engine, long_request());
  const RequestId aborted = client.submit(*engine, long_request());
  engine->abort(aborted);
  EXPECT_EQ(client.wait(2).last.finish_reason, FinishReason::kAbort);
  ASSERT_TRUE(engine->resume());
  EXPECT_NE(pauses[1 - refused].get().error().message.find("resumed before"), std::string::npos);
  for (const size_t i : {0, 1}) {
    EXPECT_EQ(client.wait(i).last.finish_reason, FinishReason::kLength) << i;
  }
}

TEST(Pause, RequestsThatAreNotKeptEnd) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kKeep));
  client.submit(*engine, long_request());
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kAbort));
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kAbort);
  client.submit(*engine, long_request());
  ASSERT_TRUE(engine->sleep(1));
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kAbort);
  client.submit(*engine, long_request());
  ASSERT_TRUE(engine->resume());
  EXPECT_TRUE(engine->is_sleeping());
  ASSERT_TRUE(engine->wake_up({}));
  EXPECT_EQ(client.wait(2).last.finish_reason, FinishReason::kLength);
}

}  // namespace
}  // namespace warprow
