// SPDX-License-Identifier: Apache-2.0
// The server's observability: metrics, the engine's state, traces, health.
#include "server/metrics/server_watch.h"
#include "tests/engine/toy_engine.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using std::chrono_literals::operator""s;
using ::testing::HasSubstr;

RequestUpdate watched_update(std::vector<TokenId> ids, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.id = 7;
  out.token_ids = std::move(ids);
  out.finish_reason = reason;
  out.timings = {.queue_ms = 1, .prompt_ms = 2, .predicted_ms = 30};
  return out;
}

ChoiceRecord record(const std::string& answer) {
  ChoiceRecord out;
  out.answer = answer;
  out.endpoint = "chat";
  out.arrived = EngineClock::now();
  out.num_prompt_toks = 3;
  out.max_tokens = 5;
  return out;
}

TEST(Histogram, CountsBySizeAndAddsUp) {
  constexpr double kBounds[] = {0.5, 2};
  Histogram histogram(kBounds);
  for (const double value : {0.5, 1.0, 2.0, 7.0}) {
    histogram.observe(value);
  }
  std::string out;
  histogram.write(out, "h", "m=\"x\"");
  EXPECT_EQ(out,
            "h_bucket{m=\"x\",le=\"0.5\"} 1\nh_bucket{m=\"x\",le=\"2\"} 3\n"
            "h_bucket{m=\"x\",le=\"+Inf\"} 4\nh_sum{m=\"x\"} 10.5\nh_count{m=\"x\"} 4\n");
}

TEST(RequestJournal, FollowsAChoiceToItsEnd) {
  ServerMetrics metrics;
  RequestJournal journal(metrics);
  ASSERT_TRUE(journal.reserve(1, 1));
  EXPECT_FALSE(journal.reserve(1, 1));
  const auto probe = journal.begin(record("a-1"));
  probe->set_id(7);
  probe->note(watched_update({4}));
  ASSERT_EQ(journal.live().size(), 1);
  EXPECT_EQ(journal.live()[0].id, 7);
  EXPECT_EQ(journal.live()[0].num_output_toks, 1);
  const EngineClock::time_point before_end = EngineClock::now();
  probe->note(watched_update({5, 6}, FinishReason::kStop));
  EXPECT_TRUE(journal.live().empty());
  EXPECT_EQ(journal.num_live(), 0);
  const auto ended = journal.seen_since(before_end);
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].num_output_toks, 3);
  EXPECT_LE(ended[0].first_token, ended[0].last_token);
  EXPECT_TRUE(journal.seen_since(EngineClock::now()).empty());
  for (size_t i = 0; i < RequestJournal::kMaxEnded + 5; ++i) {
    ASSERT_TRUE(journal.reserve(1, 1));
    journal.begin(record("b"))->note(watched_update({}, FinishReason::kAbort));
  }
  EXPECT_EQ(journal.seen_since(before_end).size(), RequestJournal::kMaxEnded);
}

TEST(RequestJournal, AnEndBeforeItsIdIsSetHasTheId) {
  ServerMetrics metrics;
  RequestJournal journal(metrics);
  ASSERT_TRUE(journal.reserve(1, 1));
  const auto probe = journal.begin(record("a-1"));
  probe->note(watched_update({4}, FinishReason::kLength));
  probe->set_id(7);
  const auto ended = journal.find("a-1", "");
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0].id, 7);
}

class Watched : public ::testing::Test {
 protected:
  // One request is live. Another has ended after the engine ran it.
  void SetUp() override {
    watch_.journal.reserve(2, 9);
    live_ = watch_.journal.begin(record("cmpl-live"));
    live_->note(watched_update({4}));
    watch_.journal.begin(record("cmpl-ended"))->note(watched_update({4, 5}, FinishReason::kLength));
    client_.submit(*engine_, testing::greedy_request({9, 3, 4}, 3));
    client_.wait(0);
  }

  ServerWatch watch_;
  testing::Client client_;
  std::unique_ptr<Engine> engine_ = testing::make_toy_engine({}, {});
  std::shared_ptr<ChoiceProbe> live_;
};

TEST_F(Watched, MetricsBearVllmsNames) {
  watch_.metrics.count_http("/health", 200);
  watch_.metrics.count_tool_parse(ChatEndpoint::kResponses, true, true);
  const std::string text = watch_.metrics.text(*engine_, "a\"b");
  const std::string labels = R"({model_name="a\"b",engine="0")";
  EXPECT_THAT(
      text,
      HasSubstr("# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running" + labels));
  EXPECT_THAT(text, HasSubstr("vllm:prompt_tokens_total" + labels + "} 3\n"));
  EXPECT_THAT(
      text, HasSubstr("vllm:request_success_total" + labels + ",finished_reason=\"length\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:time_to_first_token_seconds_count" + labels + "} 2\n"));
  EXPECT_THAT(text, HasSubstr("vllm:e2e_request_latency_seconds_count" + labels + "} 1\n"));
  EXPECT_THAT(text, HasSubstr("vllm:iteration_tokens_total_bucket" + labels + ",le=\"+Inf\"}"));
  for (const char* reason : {"capacity", "deferred"}) {
    EXPECT_THAT(text,
                HasSubstr("vllm:num_requests_waiting_by_reason" + labels + ",reason=\"" + reason +
                          "\"} 0\n"));
  }
  const std::string parses = "vllm:tool_call_parser_invocations_total" + labels + ",mode=";
  EXPECT_THAT(
      text,
      HasSubstr(parses + R"("streaming",outcome="tool_call",request_type="responses"} 1)" + "\n"));
  EXPECT_THAT(
      text,
      HasSubstr(parses +
                R"("non_streaming",outcome="no_tool_call",request_type="chat_completions"} 0)" +
                "\n"));
  EXPECT_THAT(text, HasSubstr("warprow:http_requests_total{path=\"/health\",status=\"200\"} 1\n"));
}

TEST_F(Watched, ChoicesOfOnePromptCountTogether) {
  const std::string labels = R"({model_name="m",engine="0")";
  const auto group = std::make_shared<ChoiceGroup>(ChoiceGroup{.num_running = 2});
  ChoiceRecord choice = record("cmpl-two");
  choice.group = group;
  watch_.journal.reserve(2, 9);
  const auto first = watch_.journal.begin(choice);
  const auto second = watch_.journal.begin(choice);
  RequestUpdate seven = watched_update({1, 2, 3, 4, 5, 6, 7}, FinishReason::kStop);
  seven.num_cached_tokens = 2;
  first->note(seven);
  const std::string before = watch_.metrics.text(*engine_, "m");
  EXPECT_THAT(before, HasSubstr("vllm:request_max_num_generation_tokens_count" + labels + "} 0"));
  second->note(watched_update({1}, FinishReason::kStop));
  const std::string text = watch_.metrics.text(*engine_, "m");
  EXPECT_THAT(text, HasSubstr("vllm:request_max_num_generation_tokens_sum" + labels + "} 7\n"));
  const std::string by_source = "vllm:prompt_tokens_by_source_total" + labels + ",source=\"";
  EXPECT_THAT(text, HasSubstr(by_source + "local_compute\"} 7\n"));  // 3 of each, less the 2
  EXPECT_THAT(text, HasSubstr(by_source + "local_cache_hit\"} 2\n"));
  EXPECT_THAT(text, HasSubstr(labels + ",sleep_state=\"awake\"} 1\n"));
  EXPECT_THAT(text, HasSubstr(labels + ",sleep_state=\"discard_all\"} 0\n"));
}

TEST_F(Watched, StateListsLiveRequests) {
  const json state =
      json::parse(engine_state_json(*engine_, watch_, {"m", "1.2.3"}, kDefaultStallSeconds));
  EXPECT_EQ(state["model"], "m");
  EXPECT_TRUE(state["engine"]["answered"]);
  EXPECT_TRUE(state["engine"]["trouble"].is_null());
  EXPECT_EQ(state["tokens"]["prompt"], 3);
  EXPECT_GT(state["kv"]["blocks"], 0);
  EXPECT_GE(state["recent_steps"]["count"], 3);
  ASSERT_EQ(state["requests"].size(), 1);
  const json& request = state["requests"][0];
  EXPECT_EQ(request["id"], "cmpl-live");
  EXPECT_EQ(request["state"], "pending");  // not in the engine
  EXPECT_EQ(request["output_tokens"], 1);
  EXPECT_EQ(request["max_tokens"], 5);
}

TEST_F(Watched, TraceHasStepsAndRequests) {
  const json trace = json::parse(trace_json(*engine_, watch_, EngineClock::now() - 60s));
  std::map<std::string, int> names;
  for (const json& event : trace["traceEvents"]) {
    ++names[event["name"]];
    if (event["ph"] == "X") {
      EXPECT_GE(event["dur"], 0);
      EXPECT_TRUE(event.contains("ts") && event.contains("pid") && event.contains("tid"));
    }
  }
  EXPECT_EQ(names["cmpl-live"], 1);
  EXPECT_EQ(names["cmpl-ended"], 1);
  EXPECT_EQ(names["step with prefill"], 1);
  EXPECT_GE(names["step"], 2);
  EXPECT_GE(names["wait for device"], 3);
  EXPECT_EQ(names["forward"], 3);
  EXPECT_EQ(names["mask"] + names["first mask"], 0) << "no grammar, no fills";
}

// One span of a trace.
struct Span {
  double begin = 0;
  double end = 0;
  json args;
};
using Spans = std::map<std::string, std::vector<Span>>;

// The spans, by name, of a structured request of six tokens and of another request of one token.
Spans traced(const testing::FakeModel& model, int32_t mask_delay_us) {
  EngineConfig config;
  config.grammar_mask_delay_us = mask_delay_us;
  testing::Client client;
  const std::unique_ptr<Engine> engine = testing::make_toy_engine(config, model);
  GenerationRequest request = testing::greedy_request({9, 3, 4}, 6);
  request.sampling.structured_output = StructuredOutput{GrammarKind::kRegex, "[a-z]{99}"};
  const RequestId id = client.submit(*engine, request);
  client.submit(*engine, testing::greedy_request({9, 5, 4}, 1));
  client.wait_all();
  const ServerWatch watch;
  Spans spans;
  const json trace = json::parse(trace_json(*engine, watch, EngineClock::now() - 600s));
  for (const json& event : trace["traceEvents"]) {
    if (event["ph"] == "X") {
      const double begin = event["ts"];
      const json args = event.value("args", json::object());
      spans[event["name"]].push_back({begin, begin + event["dur"].get<double>(), args});
    }
  }
  EXPECT_EQ(spans["first mask"].size(), 1U);
  EXPECT_EQ(spans["mask"].size(), 5U);
  for (const Span& mask : spans["mask"]) {
    EXPECT_EQ(mask.args["request"], id);
  }
  return spans;
}

// The forward outlasts every mask fill: a mask is filled between one step's output and the next one's.
TEST(Trace, FillsLieInTheForwardsOfTheirSteps) {
  testing::FakeModel model;
  model.forward_outlasts_masks = true;
  Spans spans = traced(model, 2000);
  std::map<int64_t, Span> forwards;
  for (const Span& forward : spans["forward"]) {
    EXPECT_EQ(forward.args["end"], "with the output");
    forwards[forward.args["step"]] = forward;
  }
  const std::vector<Span>& masks = spans["mask"];
  for (size_t i = 0; i < masks.size(); ++i) {
    SCOPED_TRACE(masks[i].args.dump());
    EXPECT_GE(masks[i].begin, forwards.at(masks[i].args["after_step"]).end);
    if (i + 1 == masks.size()) {
      EXPECT_FALSE(masks[i].args.contains("step"))
          << "no later event names the step that used the last mask";
      continue;
    }
    EXPECT_EQ(masks[i].args["step"], masks[i + 1].args["after_step"]);
    EXPECT_LE(masks[i].end, forwards.at(masks[i].args["step"]).end);
  }
}

// A forward that ends while masks are filled ends in the trace when the engine noticed.
TEST(Trace, ForwardsEndBeforeMasksThatAreLate) {
  Spans spans = traced({}, 20'000);
  const auto seen = [](const Span& forward) { return forward.args["end"] == "seen"; };
  const std::vector<Span>& forwards = spans["forward"];
  EXPECT_GE(std::count_if(forwards.begin(), forwards.end(), seen), 1);
}

TEST(EngineTrouble, NamesThePhaseOnceItLasts) {
  EngineProgress progress;
  progress.phase = EnginePhase::kDevice;
  progress.seconds = 3;
  EXPECT_EQ(engine_trouble(progress, 4), "");
  progress.seconds = 4.2;
  EXPECT_EQ(engine_trouble(progress, 4),
            "the engine is stuck: 4.2 s in phase device after 0 steps");
  progress.phase = EnginePhase::kIdle;
  EXPECT_EQ(engine_trouble(progress, 4), "");
  progress.phase = EnginePhase::kStopped;
  progress.failure = "no memory";
  EXPECT_EQ(engine_trouble(progress, 4), "the engine has stopped: no memory");
}

}  // namespace
}  // namespace warprow
