// SPDX-License-Identifier: Apache-2.0
// The life of an engine: how requests and the engine end, failures, idling.
#include "engine/engine.h"

#include "tests/engine/toy_engine.h"

#include <atomic>
#include <stdexcept>
#include <thread>
#include <time.h>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::Client;
using testing::FakeModel;
using testing::greedy_request;
using testing::long_request;
using testing::make_toy_engine;
using testing::Told;

TEST(Engine, AbortEndsOneRequestOnce) {
  Client client;
  FakeModel model;
  model.step_time = std::chrono::milliseconds(10);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  const RequestId first = client.submit(*engine, long_request(9));
  GenerationRequest other = long_request(10);
  other.sampling.max_tokens = 10;
  client.submit(*engine, other);
  client.wait_for_tokens(0, 5);
  engine->abort(first);
  engine->abort(first);
  engine->abort(12345);
  const Told& aborted = client.wait(0);
  EXPECT_EQ(aborted.last.finish_reason, FinishReason::kAbort);
  EXPECT_GE(aborted.last.num_output_tokens, 5);
  EXPECT_LT(aborted.last.num_output_tokens, 100);
  EXPECT_EQ(aborted.token_ids.size(), aborted.last.num_output_tokens);
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kLength);
  engine->abort(first);  // it ended long ago
  EXPECT_EQ(aborted.num_final, 1);
}

TEST(Engine, AbortReachesARequestThatStillWaits) {
  Client client;
  FakeModel model;
  model.max_num_seqs = 1;
  std::atomic<bool> shut = true;
  model.gate_shut = &shut;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  client.submit(*engine, long_request());
  const RequestId waiting = client.submit(*engine, long_request());
  engine->abort(waiting);
  shut = false;
  EXPECT_EQ(client.wait(1).last.finish_reason, FinishReason::kAbort);
  EXPECT_EQ(client.wait(1).last.num_output_tokens, 0);
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kLength);
}

TEST(Engine, ShutdownAbortsWhatRunsAndWaits) {
  constexpr size_t kRequests = 20;  // more than there are rows
  Client client;
  {
    FakeModel model;
    model.step_time = std::chrono::milliseconds(10);
    const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
    for (size_t i = 0; i < kRequests; ++i) {
      client.submit(*engine, long_request());
    }
    client.wait_for_tokens(0, 3);
  }
  for (size_t i = 0; i < kRequests; ++i) {
    const Told& told = client.wait(i);
    EXPECT_EQ(told.last.finish_reason, FinishReason::kAbort);
    EXPECT_EQ(told.num_final, 1);
    EXPECT_EQ(told.last.num_output_tokens, told.token_ids.size());
  }
}

TEST(Engine, ShutdownAtOnce) {
  Client client;
  for (size_t i = 0; i < 50; ++i) {
    const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
    client.submit(*engine, long_request());
  }
  client.wait_all();
}

TEST(Engine, BrokenDeviceFailsEveryRequestAndLaterOnes) {
  Client client;
  FakeModel model;
  model.throw_at_step = 10;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  for (size_t i = 0; i < 12; ++i) {
    client.submit(*engine, long_request());
  }
  client.wait_all();
  client.submit(*engine, long_request());
  engine->abort(1);
  for (size_t i = 0; i < 13; ++i) {
    const Told& told = client.wait(i);
    EXPECT_EQ(told.last.finish_reason, FinishReason::kError);
    EXPECT_EQ(told.last.error, "the toy device is broken");
    EXPECT_EQ(told.num_final, 1);
  }
}

TEST(Engine, CallbackMaySubmitAndAbort) {
  Client client;
  std::atomic<bool> submitted = false;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  const RequestId other = client.submit(*engine, long_request());
  engine->submit(value_or_throw(engine->validate(greedy_request({7, 7}, 4))),
                 [&](const RequestUpdate& update) {
                   if (update.finish_reason != FinishReason::kNone) {
                     engine->abort(other);
                     client.submit(*engine, greedy_request({8, 8}, 4));
                     submitted = true;
                   }
                 });
  client.wait(0);
  while (!submitted) {
    std::this_thread::yield();
  }
  EXPECT_NE(client.wait(1).last.finish_reason, FinishReason::kAbort);
}

TEST(Engine, CallbackThatThrowsLosesItsRequestOnly) {
  Client client;
  std::atomic<int> calls = 0;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  engine->submit(value_or_throw(engine->validate(long_request(11))), [&](const RequestUpdate&) {
    ++calls;
    throw std::runtime_error("a clumsy client");
  });
  client.submit(*engine, long_request(12));
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kLength);
  EXPECT_EQ(calls, 1);
}

TEST(Engine, IdleTakesNoCpu) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  client.submit(*engine, greedy_request({5}, 5));
  client.wait(0);
  while (engine->progress().phase != EnginePhase::kIdle) {  // the last step releases the rows
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const auto process_cpu_ns = [] {
    timespec t{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
  };
  const int64_t before = process_cpu_ns();
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  EXPECT_LT(process_cpu_ns() - before, 5'000'000);
}

TEST(Engine, ValidateEncodesThePrompt) {
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request;
  request.prompt.emplace<std::string>("cab");
  const ValidRequest valid = value_or_throw(engine->validate(request));
  EXPECT_EQ(valid.prompt_token_ids(), (std::vector<TokenId>{4, 2, 3}));
  EXPECT_EQ(valid.fields().max_tokens, 125);
  EXPECT_EQ(valid.fields().eos_token_ids, std::vector<TokenId>{testing::kToyEos});
  request.prompt.emplace<std::string>();
  EXPECT_EQ(engine->validate(request).error().code, ErrorCode::kInvalidArgument);
  request.prompt = std::vector<ChatMessage>{{"user", "hello"}};
  EXPECT_EQ(engine->validate(request).error().message, "toy: the model has no chat template");
}

TEST(Engine, PromptsWithTheSameOptionsAreValidatedAsEachAlone) {
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request;
  request.sampling.bad_words = {"a", "cab"};
  request.sampling.structured_output = StructuredOutput{GrammarKind::kRegex, "[a-c]+"};
  const std::vector<std::vector<TokenId>> prompts = {{4, 2, 3}, {5}};
  const std::vector<ValidRequest> valid =
      value_or_throw(engine->validate_prompts(request, prompts));
  ASSERT_EQ(valid.size(), prompts.size());
  for (size_t i = 0; i < prompts.size(); ++i) {
    request.prompt = prompts[i];
    const ValidRequest alone = value_or_throw(engine->validate(request));
    EXPECT_EQ(valid[i].prompt_token_ids(), prompts[i]);
    EXPECT_EQ(valid[i].fields().max_tokens, alone.fields().max_tokens);
    EXPECT_FALSE(valid[i].fields().token_lists.empty());
    EXPECT_EQ(valid[i].fields().token_lists, alone.fields().token_lists);
    EXPECT_TRUE(valid[i].fields().grammar);
  }
  EXPECT_EQ(engine->validate_prompts(request, {{5}, {}}).error().message,
            "prompt: 0 tokens, must be 1 or more");
  request.sampling.top_p = 2;
  EXPECT_EQ(engine->validate_prompts(request, prompts).error().message,
            "top_p: 2 is outside (0, 1]");
}

TEST(Engine, EveryChoiceHasAStreamOfItsOwn) {
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  GenerationRequest request = long_request();
  request.sampling.temperature = 1;
  request.sampling.max_tokens = 20;
  request.sampling.n = 3;
  request.sampling.seed = 5;
  for (ValidRequest& choice : split_choices(value_or_throw(engine->validate(request)))) {
    client.submit(*engine, std::move(choice));
  }
  request.sampling.n = 1;
  request.sampling.seed = 6;
  client.submit(*engine, request);
  client.wait_all();
  EXPECT_NE(client.wait(0).token_ids, client.wait(1).token_ids);
  EXPECT_NE(client.wait(1).token_ids, client.wait(2).token_ids);
  EXPECT_EQ(client.wait(1).token_ids, client.wait(3).token_ids) << "choice i has seed + i";
}

TEST(Engine, ValidateRefusesWhatTheCacheCannotHold) {
  FakeModel model;
  model.num_blocks = 5;  // 64 tokens; the last output needs no slot
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  EXPECT_TRUE(engine->validate(greedy_request({5}, 64)));
  const Result<ValidRequest> refused = engine->validate(greedy_request({5}, 65));
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("KV blocks"), std::string::npos)
      << refused.error().message;
}

}  // namespace
}  // namespace warprow
