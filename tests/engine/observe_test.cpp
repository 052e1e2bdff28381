// SPDX-License-Identifier: Apache-2.0
// The observable state of an engine, in particular of a stuck one.
#include "engine/observe.h"

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
using testing::Client;
using testing::FakeModel;
using testing::greedy_request;
using testing::make_toy_engine;

void wait_until(const auto& condition) {
  for (int i = 0; i < 5000 && !condition(); ++i) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_TRUE(condition());
}

TEST(Observe, AShutGateShowsAsTheDevicePhase) {
  std::atomic<bool> shut = true;
  Client client;
  FakeModel model;
  model.gate_shut = &shut;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  EXPECT_EQ(engine->progress().phase, EnginePhase::kIdle);
  client.submit(*engine, greedy_request({9, 3, 4}, 2));
  wait_until([&] {
    const EngineProgress now = engine->progress();
    return now.phase == EnginePhase::kDevice && now.seconds > 0.05;
  });
  EXPECT_EQ(engine->progress().steps, 0);
  EXPECT_FALSE(engine->list_requests(milliseconds(20)));
  shut = false;
  client.wait(0);
  wait_until([&] { return engine->progress().phase == EnginePhase::kIdle; });
  EXPECT_GT(engine->progress().steps, 0);
}

TEST(Observe, ListsRunningAndWaitingRequests) {
  Client client;
  FakeModel model;
  model.max_num_seqs = 1;
  model.step_time = milliseconds(20);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  GenerationRequest request = greedy_request({9, 3, 4}, 100);
  request.sampling.ignore_eos = true;
  const RequestId first = client.submit(*engine, request);
  const RequestId second = client.submit(*engine, request);
  client.wait_for_tokens(0, 2);
  const auto list = engine->list_requests(milliseconds(30'000));
  ASSERT_TRUE(list);
  ASSERT_EQ(list->size(), 2);
  EXPECT_EQ(list->at(0).id, first);
  EXPECT_TRUE(list->at(0).running);
  EXPECT_EQ(list->at(0).num_prompt_toks, 3);
  EXPECT_GE(list->at(0).num_output_toks, 2);
  EXPECT_EQ(list->at(0).max_output_toks, 100);
  EXPECT_GE(list->at(0).num_blocks, 1);
  EXPECT_EQ(list->at(1).id, second);
  EXPECT_FALSE(list->at(1).running);
  EXPECT_FALSE(list->at(1).preempted);
  EXPECT_EQ(engine->stats().num_running, 1);
  EXPECT_EQ(engine->stats().num_waiting, 1);
  EXPECT_FALSE(engine->reset_prefix_cache());
  engine->abort(first);
  engine->abort(second);
  client.wait_all();
  wait_until([&] { return engine->reset_prefix_cache().has_value(); });
  EXPECT_EQ(engine->stats().num_running, 0);
}

TEST(Observe, StepsAreLogged) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  const EngineClock::time_point begin = EngineClock::now();
  GenerationRequest request = greedy_request({9, 3, 4}, 5);
  request.sampling.ignore_eos = true;
  client.submit(*engine, request);
  client.wait(0);
  wait_until([&] { return engine->progress().phase == EnginePhase::kIdle; });
  const std::vector<StepTrace> steps = engine->steps().since(begin);
  ASSERT_GE(steps.size(), 5);
  EXPECT_EQ(steps[0].num_toks, 3);
  EXPECT_EQ(steps[0].num_prefill_toks, 3);
  EXPECT_EQ(steps[1].num_toks, 1);
  EXPECT_EQ(steps[1].num_prefill_toks, 0);
  for (const StepTrace& step : steps) {
    EXPECT_LE(step.planned, step.launched);
    EXPECT_LE(step.launched, step.handed);
    EXPECT_LE(step.handed, step.done);
  }
  EXPECT_TRUE(engine->steps().since(EngineClock::now()).empty());
  EXPECT_EQ(engine->steps().sizes().num_toks, 7);
  EXPECT_EQ(engine->steps().sizes().counts[0], 4);
}

TEST(StepLog, KeepsTheNewest) {
  StepLog log;
  const EngineClock::time_point now = EngineClock::now();
  for (size_t i = 0; i < StepLog::kCapacity + 3; ++i) {
    StepTrace trace;
    trace.step = static_cast<int64_t>(i);
    trace.num_toks = 9000;
    log.begin(trace);
    log.end(now, now, {});
  }
  const std::vector<StepTrace> steps = log.since(now);
  ASSERT_EQ(steps.size(), StepLog::kCapacity);
  EXPECT_EQ(steps.front().step, 3);
  EXPECT_EQ(steps.back().step, StepLog::kCapacity + 2);
  EXPECT_EQ(log.sizes().counts.back(), StepLog::kCapacity + 3);
}

}  // namespace
}  // namespace warprow
