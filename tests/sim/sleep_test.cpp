// SPDX-License-Identifier: Apache-2.0
// Sleep, wake-up and other weights with a real model: the right answers, from the same addresses.
#include "base/check.h"
#include "engine/engine.h"
#include "executor/make_executor.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "text/byte_text.h"
#include "text/text_model.h"

#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;

std::string tiny_path(const char* model) { return test::source_path("tests/golden/tiny/") + model; }

EngineConfig config_of(const std::string& model) {
  EngineConfig config;
  config.model = model;
  config.device = "cpu";
  config.dtype = "float32";
  config.threads = 2;
  config.max_model_len = 128;
  config.kv_cache_memory_bytes = 1 << 20;
  config.cudagraph_mode = "full";
  return config;
}

constexpr size_t kPromptLen = 40;

struct Answered {
  std::vector<TokenId> tokens;
  int32_t num_cached_tokens = 0;
};

Answered answer_to(Engine& engine, std::vector<TokenId> prompt, int64_t max_tokens) {
  GenerationRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = max_tokens;
  request.sampling.ignore_eos = true;
  std::mutex mutex;
  std::condition_variable changed;
  Answered answered;
  bool done = false;
  engine.submit(value_or_throw(engine.validate(request)), [&](const RequestUpdate& update) {
    const std::scoped_lock lock(mutex);
    answered.tokens.insert(answered.tokens.end(), update.token_ids.begin(), update.token_ids.end());
    answered.num_cached_tokens = update.num_cached_tokens;
    done = update.finish_reason != FinishReason::kNone;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  return answered;
}

Answered answer(Engine& engine) {
  std::vector<TokenId> prompt(kPromptLen);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<TokenId>(3 + i * 7 % 120);
  }
  return answer_to(engine, std::move(prompt), 30);
}

class SleepTest : public ::testing::TestWithParam<const char*> {};

TEST_P(SleepTest, AnswersAreTheSameAfterEveryKindOfSleep) {
  const EngineConfig config = config_of(tiny_path(GetParam()));
  const auto engine = make_engine(config, value_or_throw(make_byte_text()), make_executor(config));
  const std::vector<TokenId> expected = answer(*engine).tokens;
  EXPECT_EQ(expected.size(), 30U);
  EXPECT_GT(answer(*engine).num_cached_tokens, 0);
  // Another wake-up and enough runs of the whole prompt to capture its graph.
  ASSERT_TRUE(engine->sleep(1));
  ASSERT_TRUE(engine->wake_up({}));
  EXPECT_EQ(answer(*engine).tokens, expected);
  for (const int level : {1, 2}) {
    for (const auto& wakes : {std::vector<std::vector<std::string>>{{}},
                              {{"weights"}, {"kv_cache"}},
                              {{"kv_cache"}, {"weights"}}}) {
      const auto slept = engine->sleep(level);
      ASSERT_TRUE(slept) << slept.error().message;
      const auto report = nlohmann::json::parse(slept->front());
      EXPECT_EQ(report["level"], level);
      EXPECT_GT(report["weights_bytes"].get<int64_t>(), 0);
      EXPECT_GT(report["kv_bytes"].get<int64_t>(), 0);
      EXPECT_EQ(report["host_bytes"], level == 1 ? report["weights_bytes"] : nlohmann::json(0));
      for (const auto& tags : wakes) {
        const auto woken = engine->wake_up(tags);
        ASSERT_TRUE(woken) << woken.error().message;
      }
      const int64_t captures = engine->stats().graph_captures;
      const Answered after = answer(*engine);
      EXPECT_EQ(after.tokens, expected) << "level " << level;
      EXPECT_EQ(after.num_cached_tokens, 0)
          << "a cached prefix survived although its memory was freed";
      EXPECT_EQ(engine->stats().graph_captures, captures) << "graphs were captured anew";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models,
                         SleepTest,
                         ::testing::Values("llama_gqa_tied/model.gguf", "qwen3_two_groups"),
                         [](const auto& test) { return std::to_string(test.index); });

// Answers of both weights, with the cached prefix, graphs and a request under way. The updates go back and forth.
TEST(WeightUpdate, TakesEffectInPlace) {
  const test::TempDir dirs[2];
  const test::TempDir other_shape;
  const std::string models[] = {test::RandomModel{.seed = 1}.write(dirs[0]),
                                test::RandomModel{.seed = 2}.write(dirs[1])};
  const std::string wider = test::RandomModel{.intermediate_size = 640}.write(other_shape);
  EngineConfig config = config_of(models[0]);
  config.enable_prompt_embeds = true;  // their buffers stay, too
  const auto start = [&](const std::string& model) {
    config.model = model;
    return make_engine(config, value_or_throw(make_byte_text()), make_executor(config));
  };
  const std::vector<TokenId> expected[] = {answer(*start(models[0])).tokens,
                                           answer(*start(models[1])).tokens};
  ASSERT_NE(expected[0], expected[1]);
  const auto engine = start(models[0]);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(answer(*engine).tokens, expected[0]);
  }
  EXPECT_EQ(engine->update_weights(models[1]).error().message,
            "update_weights: the engine runs; pause it first");
  int64_t captures = 0;
  for (const size_t to : {0, 1, 0, 1}) {
    ASSERT_TRUE(engine->pause(Engine::PauseMode::kKeep));
    const auto updated = engine->update_weights(models[to]);
    ASSERT_TRUE(updated) << updated.error().message;
    ASSERT_TRUE(engine->resume());
    const Answered after = answer(*engine);
    EXPECT_EQ(after.tokens, expected[to]);
    EXPECT_EQ(after.num_cached_tokens, 0) << "a prefix of the old weights";
    EXPECT_GT(answer(*engine).num_cached_tokens, 0);
    if (captures == 0) {  // the second run of the whole prompt captures its graph
      captures = engine->stats().graph_captures;
    }
    EXPECT_GT(captures, 0);
    EXPECT_EQ(engine->stats().graph_captures, captures) << "graphs were captured anew";
  }
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kAbort));
  for (const std::string& model :
       {wider, std::string("/nonesuch"), tiny_path("qwen3_two_groups")}) {
    const auto refused = engine->update_weights(model);
    ASSERT_FALSE(refused);
    EXPECT_NE(refused.error().message.find("update_weights: "), std::string::npos);
  }
  EXPECT_NE(engine->update_weights(wider).error().message.find("must be BF16 [512, 256]"),
            std::string::npos)
      << engine->update_weights(wider).error().message;
  ASSERT_TRUE(engine->resume());
  EXPECT_EQ(answer(*engine).tokens, expected[1]);
  // The newest weights are what a level 2 wake-up reads.
  ASSERT_TRUE(engine->sleep(2));
  EXPECT_FALSE(engine->update_weights(models[0]));
  ASSERT_TRUE(engine->wake_up({}));
  EXPECT_EQ(answer(*engine).tokens, expected[1]);
}

// A request that the pause kept: its tokens so far come from the old weights, the others are what the new ones give after
// them.
TEST(WeightUpdate, KeptRequestsGoOnWithTheNewWeights) {
  const test::TempDir dirs[2];
  const std::string models[] = {test::RandomModel{.seed = 1}.write(dirs[0]),
                                test::RandomModel{.seed = 2}.write(dirs[1])};
  const EngineConfig config = config_of(models[0]);
  const auto engine = make_engine(config, value_or_throw(make_byte_text()), make_executor(config));
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<TokenId> tokens;
  bool done = false;
  GenerationRequest request;
  request.prompt = std::vector<TokenId>{5, 6, 7, 8};
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = 100;
  request.sampling.ignore_eos = true;
  engine->submit(value_or_throw(engine->validate(request)), [&](const RequestUpdate& update) {
    const std::scoped_lock lock(mutex);
    tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    done = update.finish_reason != FinishReason::kNone;
    changed.notify_one();
  });
  const auto wait = [&](auto until) {
    std::unique_lock lock(mutex);
    changed.wait(lock, until);
    return tokens.size();
  };
  wait([&] { return tokens.size() >= 3; });
  ASSERT_TRUE(engine->pause(Engine::PauseMode::kKeep));
  ASSERT_TRUE(engine->update_weights(models[1]));
  ASSERT_TRUE(engine->resume());
  wait([&] { return done; });
  ASSERT_EQ(tokens.size(), 100U);
  // The old weights' tokens are the longest prefix that the old weights give; behind it the new ones must give the rest.
  const EngineConfig other = config_of(models[1]);
  const auto fresh = make_engine(other, value_or_throw(make_byte_text()), make_executor(other));
  const auto follows = [&](size_t kept) {
    std::vector<TokenId> prompt{5, 6, 7, 8};
    prompt.insert(prompt.end(), tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(kept));
    return answer_to(*fresh, prompt, static_cast<int64_t>(tokens.size() - kept)).tokens ==
           std::vector<TokenId>(tokens.begin() + static_cast<std::ptrdiff_t>(kept), tokens.end());
  };
  bool found = false;
  for (size_t kept = 3; kept < tokens.size() && !found; ++kept) {
    found = follows(kept);
  }
  EXPECT_TRUE(found);
}

TEST(SleepSteps, NoneRunsWhileTheWorkerSleeps) {
  RigOptions options;
  options.config = config_of(tiny_path("llama_gqa_tied/model.gguf"));
  options.device.num_threads = 1;
  options.device.mode = cpu::CpuStreamMode::kInline;
  ModelRig rig(options);
  rig.executor().call(SleepRanks{1}).get();
  const ScopedCheckThrows throws;
  EXPECT_THROW(rig.executor().execute_model({}), CheckFailure);
  EXPECT_THROW(rig.executor().call(SleepRanks{1}).get(), CheckFailure);
  rig.executor().call(WakeRanks{"weights"}).get();
  EXPECT_THROW(rig.executor().execute_model({}), CheckFailure);
  rig.executor().call(WakeRanks{"kv_cache"}).get();
  SchedulerOutput step;
  step.step = 1;
  rig.submit(step);
  ModelRunnerOutput output;
  rig.executor().take_output(output);
  EXPECT_EQ(output.step, 1);
}

}  // namespace
}  // namespace warprow
