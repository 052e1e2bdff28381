// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_loop.h"

#include "base/alloc_counter.h"
#include "sched/scheduler.h"
#include "tests/engine/toy_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::Client;
using testing::FakeExecutor;
using testing::FakeModel;
using testing::greedy_request;
using testing::make_toy_engine;
using testing::make_toy_text;
using testing::Told;
using testing::toy_answer;
using testing::ToyAnswer;

// Configurations under which the same requests run. None may change an answer.
struct Axis {
  const char* name;
  bool async = true;
  bool serialised = false;
  int step_us = 0;
  bool chunked = true;
  bool prefix_caching = true;
  int num_blocks = 65;
  int num_drafts = 0;
};

void PrintTo(const Axis& axis, std::ostream* out) { *out << axis.name; }

class EngineLoopAxes : public ::testing::TestWithParam<Axis> {
 protected:
  static std::unique_ptr<Engine> make() {
    const Axis& axis = GetParam();
    FakeModel model;
    model.step_time = std::chrono::microseconds(axis.step_us);
    model.num_blocks = axis.num_blocks;
    model.num_drafts = axis.num_drafts;
    model.max_num_batched_tokens = axis.chunked ? 32 : model.max_model_len;
    EngineConfig config;
    config.async_scheduling = axis.async;
    config.enable_chunked_prefill = axis.chunked;
    config.enable_prefix_caching = axis.prefix_caching;
    return make_toy_engine(config, model, axis.serialised);
  }
};

GenerationRequest random_request(std::mt19937& random) {
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
  GenerationRequest request = testing::random_toy_request(random);
  if (below(3) == 0) {
    request.sampling.logprobs = below(3);
  }
  if (below(4) == 0) {
    request.sampling.stop_token_ids = {2 + below(60), 2 + below(60)};
  }
  request.sampling.ignore_eos = below(2) == 0;
  return request;
}

void expect_answer(const Told& told, const RequestFields& fields) {
  const ToyAnswer answer = toy_answer(fields);
  EXPECT_EQ(told.token_ids, answer.token_ids);
  EXPECT_EQ(told.last.finish_reason, answer.reason);
  if (answer.stop_token_id >= 0) {
    EXPECT_EQ(std::get<int64_t>(told.last.stop_reason), answer.stop_token_id);
  } else {
    EXPECT_TRUE(std::holds_alternative<std::monostate>(told.last.stop_reason));
  }
  EXPECT_EQ(told.num_final, 1);
  EXPECT_FALSE(told.updated_after_final);
  EXPECT_EQ(told.last.num_prompt_tokens, fields.prompt_token_ids.size());
  EXPECT_EQ(told.last.num_output_tokens, answer.token_ids.size());
  ASSERT_EQ(told.logprobs.size(), fields.params.num_logprobs >= 0 ? answer.token_ids.size() : 0);
  for (size_t i = 0; i < told.logprobs.size(); ++i) {
    const LogprobEntry& entry = told.logprobs[i];
    EXPECT_EQ(entry.token_id, answer.token_ids[i]);
    EXPECT_EQ(entry.logprob, testing::toy_logprob(entry.token_id));
    EXPECT_EQ(entry.rank, testing::toy_rank(entry.token_id));
    ASSERT_EQ(entry.top.size(), static_cast<size_t>(fields.params.num_logprobs));
    for (size_t k = 0; k < entry.top.size(); ++k) {
      EXPECT_EQ(entry.top[k].token_id,
                (entry.token_id + static_cast<TokenId>(k)) % testing::kToyVocab);
      EXPECT_EQ(entry.top[k].logprob, testing::toy_logprob(entry.top[k].token_id));
    }
  }
}

TEST_P(EngineLoopAxes, AnswersAreTheModelsOwn) {
  std::mt19937 random(7);
  Client client;
  const std::unique_ptr<Engine> engine = make();
  testing::check_answers(
      client, *engine, 60, [&] { return random_request(random); }, expect_answer);
  // The configuration must have had its effect.
  const EngineStats stats = engine->stats();
  EXPECT_EQ(stats.max_steps_in_flight, GetParam().async ? 2 : 1);
  EXPECT_EQ(stats.preemptions > 0, GetParam().num_blocks < 65);
  EXPECT_EQ(stats.prefix_hit_tokens > 0, GetParam().prefix_caching);
  EXPECT_GT(stats.mixed_steps, 0);
  EXPECT_EQ(stats.partial_prefill_steps > 0, GetParam().chunked);
}

TEST_P(EngineLoopAxes, ManyThreadsSubmitAndAbort) {
  constexpr size_t kThreads = 4;
  constexpr size_t kRequests = 40;
  std::vector<Client> clients(kThreads);
  std::vector<std::vector<RequestFields>> fields(kThreads);
  const std::unique_ptr<Engine> engine = make();
  std::vector<std::thread> threads;
  for (size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937 random(static_cast<uint32_t>(100 + t));
      std::vector<RequestId> ids;
      for (size_t i = 0; i < kRequests; ++i) {
        ValidRequest request = value_or_throw(engine->validate(random_request(random)));
        fields[t].push_back(request.fields());
        ids.push_back(clients[t].submit(*engine, std::move(request)));
        if (random() % 3 == 0) {
          engine->abort(ids[random() % ids.size()]);
        }
        if (random() % 8 == 0) {
          std::this_thread::sleep_for(std::chrono::microseconds(random() % 300));
        }
      }
      clients[t].wait_all();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  size_t num_aborted = 0;
  for (size_t t = 0; t < kThreads; ++t) {
    for (size_t i = 0; i < kRequests; ++i) {
      SCOPED_TRACE(::testing::Message() << "thread " << t << " request " << i);
      const Told& told = clients[t].wait(i);
      if (told.last.finish_reason != FinishReason::kAbort) {
        expect_answer(told, fields[t][i]);
        continue;
      }
      // An aborted request got only its own tokens.
      ++num_aborted;
      const ToyAnswer answer = toy_answer(fields[t][i]);
      ASSERT_LT(told.token_ids.size(), answer.token_ids.size());
      EXPECT_TRUE(
          std::equal(told.token_ids.begin(), told.token_ids.end(), answer.token_ids.begin()));
      EXPECT_EQ(told.num_final, 1);
      EXPECT_FALSE(told.updated_after_final);
    }
  }
  EXPECT_GT(num_aborted, 0U);
}

INSTANTIATE_TEST_SUITE_P(
    All,
    EngineLoopAxes,
    ::testing::Values(
        Axis{.name = "async"},
        Axis{.name = "sync", .async = false},
        Axis{.name = "serialised", .serialised = true},
        Axis{.name = "slow_device", .step_us = 200},
        Axis{.name = "whole_prompts", .chunked = false},
        Axis{.name = "no_prefix_cache", .prefix_caching = false},
        Axis{.name = "few_blocks", .num_blocks = 14},
        Axis{.name = "drafts", .num_drafts = 3},
        Axis{.name = "drafts_sync_serialised", .async = false, .serialised = true, .num_drafts = 4},
        Axis{.name = "drafts_few_blocks", .step_us = 50, .num_blocks = 14, .num_drafts = 2}),
    [](const auto& axis) { return std::string(axis.param.name); });

TEST(EngineLoop, MaxTokensOneIsOneStep) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  client.submit(*engine, greedy_request({5, 6, 7}, 1));
  const Told& told = client.wait(0);
  EXPECT_EQ(told.token_ids.size(), 1U);
  EXPECT_EQ(told.last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(engine->stats().steps, 1);
  EXPECT_EQ(engine->stats().prompt_tokens, 3);
  EXPECT_EQ(engine->stats().output_tokens, 1);
}

// 10 prompt tokens and 3 outputs, always one step ahead. A request whose end is certain is not scheduled again.
TEST(EngineLoop, AsyncRunsNoStepInVain) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request = greedy_request(std::vector<TokenId>(10, 9), 3);
  request.sampling.ignore_eos = true;
  client.submit(*engine, request);
  EXPECT_EQ(client.wait(0).token_ids.size(), 3U);
  EXPECT_EQ(engine->stats().steps, 3);
}

// Counts the engine thread's allocations between its calls of the executor.
class CountingExecutor : public FakeExecutor {
 public:
  using FakeExecutor::FakeExecutor;

  void execute_model(const SchedulerOutput& step) override {
    counting_.reset();
    all_submitted.wait(false);
    FakeExecutor::execute_model(step);
    counting_.emplace();
  }
  void sample_tokens(const GrammarOutput* grammar) override {
    counting_.reset();
    FakeExecutor::sample_tokens(grammar);
    counting_.emplace();
  }
  void take_output(ModelRunnerOutput& output) override {
    counting_.reset();
    FakeExecutor::take_output(output);
    const int64_t step = stats().steps;
    if (step == kFrom) {
      counted_before_ = counted_allocations();
    } else if (step == kTo) {
      counted = counted_allocations() - counted_before_;
    }
    counting_.emplace();
  }

  static constexpr int64_t kFrom = 20;
  static constexpr int64_t kTo = 100;
  static inline std::atomic<int64_t> counted = -1;
  // The first step waits for it: a request that came after step kFrom would be counted.
  static inline std::atomic<bool> all_submitted = false;

 private:
  std::optional<CountAllocations> counting_;
  int64_t counted_before_ = 0;
};

TEST(EngineLoop, SteadyDecodeAllocatesNothing) {
  if (!counts_allocations()) {
    GTEST_SKIP() << "allocations are not counted in this build";
  }
  CountingExecutor::all_submitted = false;
  Client client;
  const std::unique_ptr<Engine> engine =
      make_engine({}, make_toy_text(), std::make_unique<CountingExecutor>(FakeModel{}));
  for (TokenId i = 0; i < 8; ++i) {
    GenerationRequest request = greedy_request({9, 3, 4 + i}, 110);
    request.sampling.ignore_eos = true;
    client.submit(*engine, request);
  }
  CountingExecutor::all_submitted = true;
  CountingExecutor::all_submitted.notify_all();
  client.wait_all();
  EXPECT_EQ(CountingExecutor::counted, 0);
}

// Each step accepts the right drafts, but no more than the request's limits allow.
TEST(EngineLoop, DraftsSaveSteps) {
  FakeModel model;
  model.num_drafts = 3;
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  GenerationRequest request = greedy_request({5, 6, 7}, 90);
  request.sampling.ignore_eos = true;
  request.sampling.logprobs = 1;
  ValidRequest valid = value_or_throw(engine->validate(request));
  const RequestFields fields = valid.fields();
  client.submit(*engine, std::move(valid));
  const Told& told = client.wait(0);
  expect_answer(told, fields);
  EXPECT_EQ(told.token_ids.size(), 90U);
  EXPECT_LT(told.num_updates, 60);
  EXPECT_LT(engine->stats().steps, 60);
  EXPECT_EQ(engine->stats().output_tokens, 90);
}

// A stop string ends within a run of accepted drafts: what the run had behind it is in no text, list or count.
TEST(EngineLoop, AStopStringEndsInsideARun) {
  const auto run = [](int num_drafts, const std::vector<std::string>& stop) {
    FakeModel model;
    model.num_drafts = num_drafts;
    Client client;
    const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
    GenerationRequest request = greedy_request({5, 6, 7}, 60);
    request.sampling.ignore_eos = true;
    request.sampling.logprobs = 1;
    request.sampling.stop = stop;
    client.submit(*engine, request);
    const Told& told = client.wait(0);
    EXPECT_EQ(told.logprobs.size(), told.token_ids.size());
    return std::pair(told.text, told.token_ids);
  };
  const std::string whole = run(0, {}).first;
  for (size_t at = 8; at + 3 < whole.size(); at += 5) {
    const std::vector<std::string> stop = {whole.substr(at, 3)};
    SCOPED_TRACE(stop.front());
    const auto plain = run(0, stop);
    EXPECT_EQ(plain.first, whole.substr(0, whole.find(stop.front())));
    EXPECT_EQ(run(4, stop), plain);
  }
}

TEST(EngineLoop, UnseededRequestsDrawFromTheEnginesSeed) {
  const auto run = [](uint64_t engine_seed) {
    Client client;
    EngineConfig config;
    config.seed = engine_seed;
    const std::unique_ptr<Engine> engine = make_toy_engine(config, {});
    GenerationRequest request = greedy_request({5, 6, 7}, 20);
    request.sampling.temperature = 1;
    request.sampling.ignore_eos = true;
    client.submit(*engine, request);
    client.submit(*engine, request);
    client.wait_all();
    return std::pair(client.wait(0).token_ids, client.wait(1).token_ids);
  };
  const auto first = run(1);
  EXPECT_NE(first.first, first.second);
  EXPECT_EQ(run(1), first);
  EXPECT_NE(run(2).first, first.first);
}

TEST(EngineLoop, TimingsAndCachedTokensAreTold) {
  Client client;
  FakeModel model;
  model.step_time = std::chrono::milliseconds(2);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  GenerationRequest request = greedy_request(std::vector<TokenId>(40, 9), 5);
  request.sampling.ignore_eos = true;
  client.submit(*engine, request);
  client.wait(0);
  client.submit(*engine, request);
  const RequestUpdate& first = client.wait(0).last;
  const RequestUpdate& second = client.wait(1).last;
  EXPECT_EQ(first.num_cached_tokens, 0);
  EXPECT_EQ(second.num_cached_tokens, 32);
  EXPECT_GE(first.timings.queue_ms, 0);
  EXPECT_GE(first.timings.prompt_ms, 3.9);  // 40 tokens in steps of 32
  EXPECT_GE(first.timings.predicted_ms,
            5.9);  // the second output may already be ready when the first is taken
  EXPECT_LT(first.timings.predicted_ms, 100'000);
}

// Prompt tokens of the steps in which a request streams while a prompt of 400 tokens comes, each of which takes a millisecond.
std::vector<int32_t> prompt_chunks_beside_a_stream(int32_t target_itl_ms) {
  FakeModel model;
  model.max_model_len = 600;
  model.max_num_batched_tokens = 512;
  model.num_blocks = 100;
  model.step_time = std::chrono::milliseconds(1);
  model.tok_time = std::chrono::milliseconds(1);
  model.target_itl_ms = target_itl_ms;
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  GenerationRequest stream = greedy_request(std::vector<TokenId>(64, 5), 500);
  stream.sampling.ignore_eos = true;
  const RequestId id = client.submit(*engine, stream);
  client.wait_for_tokens(0, 10);
  client.submit(*engine, greedy_request(std::vector<TokenId>(400, 6), 1));
  client.wait(1);
  engine->abort(id);
  client.wait(0);
  std::vector<int32_t> chunks;
  for (const StepTrace& step : engine->steps().since({})) {
    if (step.num_prefill_toks > 0 && step.num_rows > 1) {
      chunks.push_back(step.num_prefill_toks);
    }
  }
  return chunks;
}

// 24 tokens fit beside the stream, fewer on a slow machine; the bounds leave room for times that are measured wrongly there.
TEST(EngineLoop, PromptsBesideAStreamFollowFromMeasuredTime) {
  EXPECT_EQ(prompt_chunks_beside_a_stream(0), (std::vector<int32_t>{400}));
  const std::vector<int32_t> chunks = prompt_chunks_beside_a_stream(25);
  ASSERT_GE(chunks.size(), 4U);
  EXPECT_GE(*std::min_element(chunks.begin(), chunks.end() - 1), kMinMixedPrefill);
  EXPECT_LE(std::ranges::max(chunks), 100);
  EXPECT_GE(std::accumulate(chunks.begin(), chunks.end(), 0), 399);  // a chunk of 1 is not counted
}

}  // namespace
}  // namespace warprow
