// SPDX-License-Identifier: Apache-2.0
#include "engine/request_log.h"

#include "tests/engine/toy_engine.h"

#include <algorithm>
#include <atomic>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Kind = RequestEvent::Kind;
using ::testing::ElementsAre;

std::vector<Kind> kinds(const RequestHistory& history) {
  std::vector<Kind> out;
  for (const RequestEvent& event : history.list()) {
    out.push_back(event.kind);
  }
  return out;
}

const RequestEvent& first_of(const RequestHistory& history, Kind kind) {
  return *std::ranges::find(history.list(), kind, &RequestEvent::kind);
}

SchedulerOutput step_of(int64_t number) {
  SchedulerOutput step;
  step.step = number;
  return step;
}

// A log of one row, driven by hand.
struct Rig {
  void arrive(uint64_t id, size_t prompt_len = 10) {
    Request request;
    request.id = id;
    request.prompt.resize(prompt_len);
    log.arrive(request, 3, 2);
  }
  void plan(SchedulerOutput step, uint64_t id) {
    log.plan(step, EngineClock::now(), [id](RowId) { return id; });
  }
  void take(int64_t step, uint64_t id, FinishReason reason = FinishReason::kNone) {
    RequestDelta delta;
    delta.id = id;
    delta.row = RowId{0};
    delta.tokens = {0, 1};
    delta.reason = reason;
    log.take(step, std::vector{delta}, EngineClock::now());
  }
  void admit(int64_t number, uint64_t id, int32_t prefill_len, int32_t chunk) {
    SchedulerOutput step = step_of(number);
    NewRow& row = step.new_rows.emplace_back();
    row.row = RowId{0};
    row.prefill_len = prefill_len;
    step.scheduled.push_back({.row = RowId{0}, .num_tokens = chunk});
    plan(step, id);
  }

  RequestLog log{1};
};

TEST(RequestLog, FollowsARequestThatIsPreempted) {
  Rig rig;
  rig.arrive(5);
  rig.admit(1, 5, 10, 6);
  SchedulerOutput rest = step_of(2);
  rest.scheduled.push_back({.row = RowId{0}, .num_tokens = 4, .num_computed_tokens = 6});
  rig.plan(rest, 5);
  rig.take(2, 5);
  SchedulerOutput decode = step_of(3);
  decode.scheduled.push_back({.row = RowId{0}, .num_tokens = 1, .num_computed_tokens = 10});
  rig.plan(decode, 5);  // no event
  rig.take(3, 5);
  SchedulerOutput preempting = step_of(4);
  preempting.preempted_rows.push_back(RowId{0});
  rig.plan(preempting, 5);
  rig.admit(5, 5, 12, 12);
  rig.take(5, 5);
  rig.take(6, 5, FinishReason::kLength);
  const RequestHistory history = *rig.log.find(5);
  EXPECT_THAT(kinds(history),
              ElementsAre(Kind::kArrived,
                          Kind::kAdmitted,
                          Kind::kChunk,
                          Kind::kChunk,
                          Kind::kFirstToken,
                          Kind::kPreempted,
                          Kind::kAdmitted,
                          Kind::kChunk,
                          Kind::kFirstToken,
                          Kind::kEnded));
  EXPECT_EQ(history.num_prompt_toks, 10);
  EXPECT_EQ(history.events[0].num, 3);
  EXPECT_EQ(history.events[0].other, 2);
  EXPECT_EQ(history.events[3].other, 6);
  EXPECT_EQ(history.events[4].first_step, 2);
  EXPECT_EQ(history.events[5].num, 12);  // 10 and two outputs
  EXPECT_EQ(history.events[9].num, static_cast<int32_t>(FinishReason::kLength));
}

TEST(RequestLog, ChunksThatFindNoPlaceAreJoinedAndTheEndHasOne) {
  Rig rig;
  rig.arrive(7, 1000);
  rig.admit(1, 7, 1000, 5);
  for (int64_t step = 2; step <= 200; ++step) {
    SchedulerOutput more = step_of(step);
    more.scheduled.push_back({.row = RowId{0},
                              .num_tokens = 5,
                              .num_computed_tokens = static_cast<int32_t>(5 * (step - 1))});
    rig.plan(more, 7);
  }
  rig.take(200, 7);
  rig.take(201, 7, FinishReason::kStop);
  const RequestHistory history = *rig.log.find(7);
  int32_t num_toks = 0;
  int32_t num_steps = 0;
  for (const RequestEvent& event : history.list()) {
    num_toks += event.kind == Kind::kChunk ? event.num : 0;
    num_steps += event.kind == Kind::kChunk ? event.num_steps : 0;
  }
  EXPECT_EQ(num_toks, 1000);
  EXPECT_EQ(num_steps, 200);
  EXPECT_EQ(history.list().back().kind, Kind::kEnded);
  EXPECT_EQ(history.num_left_out, 0);
}

TEST(RequestLog, EventsThatFindNoPlaceAreCounted) {
  Rig rig;
  rig.arrive(7);
  for (int64_t step = 1; step < 100; step += 2) {
    rig.admit(step, 7, 10, 10);
    SchedulerOutput preempting = step_of(step + 1);
    preempting.preempted_rows.push_back(RowId{0});
    rig.plan(preempting, 7);
  }
  rig.log.end(7, FinishReason::kAbort);
  const RequestHistory history = *rig.log.find(7);
  EXPECT_EQ(history.num_events, RequestHistory::kMaxEvents);
  EXPECT_EQ(history.list().back().kind, Kind::kEnded);
  EXPECT_EQ(history.num_left_out,
            1 + 50 * 3 + 1 - static_cast<int32_t>(RequestHistory::kMaxEvents));
}

TEST(RequestLog, TheNewestAreKept) {
  Rig rig;
  rig.arrive(1);
  EXPECT_TRUE(rig.log.find(1));
  EXPECT_FALSE(rig.log.find(0));
  EXPECT_FALSE(rig.log.find(2));
  rig.arrive(1 + RequestLog::kCapacity);
  EXPECT_FALSE(rig.log.find(1));
  rig.log.end(1, FinishReason::kAbort);  // has no place any more
  EXPECT_THAT(kinds(*rig.log.find(1 + RequestLog::kCapacity)), ElementsAre(Kind::kArrived));
}

// Through the engine: three requests with one row.
TEST(RequestLog, OfAnEngineSaysWhoWaitedAndWhatWasCached) {
  std::atomic<bool> shut = true;
  testing::FakeModel model;
  model.max_num_seqs = 1;
  model.gate_shut = &shut;
  testing::Client client;
  const auto engine = testing::make_toy_engine({}, model);
  const std::vector<TokenId> prompt(40, 9);
  GenerationRequest request = testing::greedy_request(prompt, 4);
  request.sampling.ignore_eos = true;
  const RequestId first = client.submit(*engine, request);
  const RequestId second = client.submit(*engine, request);
  const RequestId aborted = client.submit(*engine, request);
  engine->abort(aborted);
  shut = false;
  client.wait_all();
  EXPECT_THAT(kinds(*engine->history(first)),
              ElementsAre(Kind::kArrived,
                          Kind::kAdmitted,
                          Kind::kChunk,
                          Kind::kChunk,  // 32 tokens, then 8
                          Kind::kFirstToken,
                          Kind::kEnded));
  const RequestHistory cached = *engine->history(second);
  EXPECT_EQ(first_of(cached, Kind::kAdmitted).num, 32);
  EXPECT_EQ(first_of(cached, Kind::kChunk).num, 8);
  EXPECT_GT(first_of(cached, Kind::kAdmitted).first_step,
            first_of(*engine->history(first), Kind::kFirstToken).first_step);
  const RequestHistory ended = *engine->history(aborted);
  EXPECT_EQ(ended.list().back().kind, Kind::kEnded);
  EXPECT_EQ(ended.list().back().num, static_cast<int32_t>(FinishReason::kAbort));
  // While the second waited, steps said why.
  const std::vector<StepTrace> steps = engine->steps().since({});
  EXPECT_TRUE(std::ranges::any_of(
      steps, [](const StepTrace& step) { return step.wait_reason == WaitReason::kRows; }));
}

TEST(RequestLog, OfAnEngineSaysWhoWasPreempted) {
  std::atomic<bool> shut = true;
  testing::FakeModel model;
  model.num_blocks = 9;
  model.gate_shut = &shut;
  testing::Client client;
  const auto engine = testing::make_toy_engine({}, model);
  std::vector<RequestId> ids;
  for (const TokenId token : {9, 10}) {
    GenerationRequest request = testing::greedy_request(std::vector<TokenId>(20, token), 60);
    request.sampling.ignore_eos = true;
    ids.push_back(client.submit(*engine, request));
  }
  shut = false;
  client.wait_all();
  ASSERT_GT(engine->stats().preemptions, 0);
  int64_t num_preempted = 0;
  for (const RequestId id : ids) {
    const RequestHistory history = *engine->history(id);
    num_preempted += std::ranges::count(history.list(), Kind::kPreempted, &RequestEvent::kind);
    EXPECT_EQ(std::ranges::count(history.list(), Kind::kAdmitted, &RequestEvent::kind),
              1 + std::ranges::count(history.list(), Kind::kPreempted, &RequestEvent::kind));
  }
  EXPECT_EQ(num_preempted, engine->stats().preemptions);
}

}  // namespace
}  // namespace warprow
