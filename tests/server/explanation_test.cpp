// SPDX-License-Identifier: Apache-2.0
#include "server/metrics/explanation.h"

#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;
using Kind = RequestEvent::Kind;
using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;

// A server in which step n begins n * 10 ms after the start, and takes 10 ms.
class Explanations : public ::testing::Test {
 protected:
  Explanations() {
    record_.answer = "cmpl-a";
    record_.arrived = at(0);
    record_.ended = at(200);
    record_.first_token = at(60);
    record_.num_prompt_toks = 100;
    record_.num_output_toks = 9;
    record_.max_tokens = 9;
    record_.finish_reason = FinishReason::kLength;
    facts_.max_num_seqs = 4;
    facts_.kv.num_blocks = 65;
    for (int64_t n = 0; n < 20; ++n) {
      StepTrace step;
      step.step = n;
      step.planned = step.launched = at(10 * n);
      step.done = at(10 * n + 10);
      step.num_rows = step.num_toks = 3;
      step.graph_mode = 2;
      steps_.push_back(step);
    }
  }

  static EngineClock::time_point at(int64_t ms) {
    return EngineClock::time_point(std::chrono::hours(1) + milliseconds(ms));
  }
  struct Event {
    Kind kind = Kind::kArrived;
    int32_t num_steps = 0;
    int32_t num = 0;
    int32_t other = 0;
    int64_t first_step = 0;
    int64_t last_step = 0;  // 0: first_step
  };
  void add(const Event& event, int64_t ms) {
    history_.events.at(static_cast<size_t>(history_.num_events++)) = {
        event.kind,
        event.num_steps,
        event.num,
        event.other,
        event.first_step,
        event.last_step == 0 ? event.first_step : event.last_step,
        at(ms)};
  }
  Json explain(bool with_steps = false) {
    return explain_choice(
        {.record = record_, .history = &history_, .steps = steps_, .facts = facts_}, with_steps);
  }
  static std::vector<std::string> why(const Json& json) {
    return json["why"].get<std::vector<std::string>>();
  }
  static Json event(const Json& json, const std::string& name, size_t nth = 0) {
    for (const Json& one : json["timeline"]) {
      if (one["event"] == name && nth-- == 0) {
        return one;
      }
    }
    return nullptr;
  }

  ChoiceRecord record_;
  ModelFacts facts_;
  std::vector<StepTrace> steps_;
  RequestHistory history_;
};

TEST_F(Explanations, OfARequestThatWaited) {
  add({.kind = Kind::kArrived, .num = 1, .other = 4, .first_step = 0}, 5);
  steps_[1].wait_reason = steps_[2].wait_reason = WaitReason::kRows;
  steps_[1].num_running = steps_[2].num_running = 4;
  steps_[3].wait_reason = WaitReason::kBlocks;
  add({.kind = Kind::kAdmitted, .num = 0, .other = 100, .first_step = 4}, 40);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 60, .first_step = 4}, 40);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 40, .other = 60, .first_step = 5}, 50);
  add({.kind = Kind::kFirstToken, .first_step = 5}, 60);
  add({.kind = Kind::kEnded, .num = static_cast<int32_t>(FinishReason::kLength), .first_step = 13},
      140);
  steps_[8].num_prefill_toks = 50;
  steps_[8].num_rows = 5;
  steps_[9].graph_mode = 0;
  const Json json = explain(true);
  EXPECT_EQ(json["state"], "length");
  EXPECT_EQ(json["queue_ms"], 35);
  EXPECT_EQ(json["prefill_ms"], 20);
  EXPECT_EQ(json["decode_ms"], 80);
  EXPECT_EQ(json["preemptions"], 0);
  EXPECT_EQ(event(json, "waited")["reasons"].dump(),
            R"([{"reason":"step_under_way","ms":5.0},{"reason":"rows","ms":20.0},)"
            R"({"reason":"blocks","ms":10.0}])");
  EXPECT_THAT(
      why(json),
      Contains(AllOf(HasSubstr("It waited 35.0 ms for a row: 20.0 ms because 4 requests ran"),
                     HasSubstr("10.0 ms for KV blocks (the cache has 64)"),
                     HasSubstr("5.0 ms for the step that was under way"))));
  EXPECT_THAT(why(json), Contains("None of its 100 prompt tokens were in the prefix cache."));
  EXPECT_THAT(why(json), Contains(HasSubstr("100 tokens were computed in 2 steps")));
  EXPECT_THAT(
      why(json),
      Contains(AllOf(HasSubstr("decoded for 80.0 ms in 8 steps of 10.00 ms"),
                     HasSubstr("with 2.2 other rows"),
                     HasSubstr("1 of the steps also computed 50 prompt tokens of others"))));
  EXPECT_THAT(why(json),
              Contains("Of these steps 7 ran as one graph, 0 in pieces, 1 without graphs."));
  const Json decode = event(json, "decode");
  EXPECT_EQ(decode["first_step"], 6);
  EXPECT_EQ(decode["last_step"], 13);
  EXPECT_EQ(decode["steps_with_prompts"], 1);
  EXPECT_EQ(decode["max_rows"], 5);
  ASSERT_EQ(json["steps"].size(), 10);  // two chunks and eight tokens
  EXPECT_EQ(json["steps"][0]["kind"], "chunk");
  EXPECT_EQ(json["steps"][9]["at_ms"], 130);
}

TEST_F(Explanations, OfARequestThatSharedAPrefix) {
  add({.kind = Kind::kArrived, .first_step = 0}, 1);
  add({.kind = Kind::kAdmitted, .num = 96, .other = 100, .first_step = 1}, 10);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 4, .other = 96, .first_step = 1}, 10);
  add({.kind = Kind::kFirstToken, .first_step = 1}, 20);
  const Json json = explain();
  EXPECT_EQ(json["cached_tokens"], 96);
  EXPECT_THAT(why(json), Contains("96 of its 100 prompt tokens were in the prefix cache."));
  EXPECT_THAT(why(json), Contains(HasSubstr("4 tokens were computed in 1 step,")));
  EXPECT_THAT(why(json),
              Contains("It waited 9.0 ms for a row: 9.0 ms for the step that was under way."));
  EXPECT_FALSE(json.contains("steps"));
}

TEST_F(Explanations, OfARequestThatWasPreempted) {
  add({.kind = Kind::kArrived, .first_step = 0}, 0);
  add({.kind = Kind::kAdmitted, .num = 0, .other = 100, .first_step = 1}, 10);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 100, .first_step = 1}, 10);
  add({.kind = Kind::kFirstToken, .first_step = 1}, 20);
  add({.kind = Kind::kPreempted, .num = 104, .first_step = 5}, 50);
  steps_[5].wait_reason = WaitReason::kPreemption;
  steps_[6].wait_reason = steps_[7].wait_reason = WaitReason::kBlocks;
  add({.kind = Kind::kAdmitted, .num = 96, .other = 104, .first_step = 8}, 80);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 8, .other = 96, .first_step = 8}, 80);
  add({.kind = Kind::kFirstToken, .first_step = 8}, 90);
  add({.kind = Kind::kEnded, .num = static_cast<int32_t>(FinishReason::kLength), .first_step = 11},
      120);
  const Json json = explain();
  EXPECT_EQ(json["preemptions"], 1);
  EXPECT_EQ(json["preempted_ms"], 30);
  EXPECT_EQ(json["decode_ms"], 30 + 30);
  EXPECT_EQ(json["prefill_ms"], 10 + 10);
  EXPECT_THAT(why(json),
              Contains(AllOf(HasSubstr("It was preempted 1 time, as the cache had no block left"),
                             HasSubstr("waited 30.0 ms to come back"),
                             HasSubstr("20.0 ms for KV blocks"),
                             HasSubstr("96 tokens were found in the cache and 8 computed again"))));
  // Its first run ends before the step that preempted it.
  EXPECT_EQ(event(json, "decode", 0)["last_step"], 4);
  EXPECT_EQ(event(json, "decode", 0)["steps"], 3);
  EXPECT_EQ(event(json, "decode", 1)["first_step"], 9);
}

TEST_F(Explanations, OfARequestWhoseMasksWereLate) {
  add({.kind = Kind::kArrived, .first_step = 0}, 0);
  add({.kind = Kind::kAdmitted, .other = 100, .first_step = 1}, 10);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 100, .first_step = 1}, 10);
  add({.kind = Kind::kFirstToken, .first_step = 1}, 20);
  add({.kind = Kind::kHeld, .num_steps = 2, .first_step = 2, .last_step = 3}, 30);
  EXPECT_THAT(why(explain()), Contains(HasSubstr("In 2 steps it drew no token")));
}

TEST_F(Explanations, OfOneThatLivesOrIsForgotten) {
  record_.ended = {};
  record_.num_output_toks = 0;
  add({.kind = Kind::kArrived, .num = 7, .first_step = 0}, 0);
  const Json waiting = explain();
  EXPECT_EQ(waiting["state"], "waiting");
  EXPECT_EQ(waiting["ttft_ms"], nullptr);
  EXPECT_EQ(event(waiting, "arrived")["waiting"], 7);
  const Json forgotten = explain_choice(
      {.record = record_, .history = nullptr, .steps = steps_, .facts = facts_}, true);
  EXPECT_EQ(forgotten["known"], false);
  EXPECT_THAT(why(forgotten), Contains(HasSubstr("has forgotten it")));
  EXPECT_TRUE(forgotten["timeline"].empty());
}

TEST_F(Explanations, OfOneThatRanAtOnce) {
  add({.kind = Kind::kArrived, .first_step = 0}, 10);
  add({.kind = Kind::kAdmitted, .other = 100, .first_step = 1}, 10);
  EXPECT_THAT(why(explain()), Contains("It got a row at once."));
}

// Steps that the engine has forgotten are not made up.
TEST_F(Explanations, WithoutSteps) {
  steps_.clear();
  add({.kind = Kind::kArrived, .first_step = 0}, 0);
  add({.kind = Kind::kAdmitted, .other = 100, .first_step = 1}, 10);
  add({.kind = Kind::kChunk, .num_steps = 1, .num = 100, .first_step = 1}, 10);
  add({.kind = Kind::kFirstToken, .first_step = 1}, 20);
  add({.kind = Kind::kEnded, .first_step = 9}, 100);
  const Json json = explain();
  EXPECT_FALSE(event(json, "chunk").contains("ms"));
  EXPECT_EQ(event(json, "decode"), nullptr);
  EXPECT_THAT(why(json), Contains(HasSubstr("too long ago")));
}

}  // namespace
}  // namespace warprow
