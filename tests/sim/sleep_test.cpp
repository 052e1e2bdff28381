// SPDX-License-Identifier: Apache-2.0
// Sleep and wake-up with a real model: the same answers, from the same addresses.
#include "base/check.h"
#include "engine/engine.h"
#include "executor/make_executor.h"
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"
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

std::string tiny(const char* model) { return test::source_path("tests/golden/tiny/") + model; }

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

Answered answer(Engine& engine) {
  GenerationRequest request;
  std::vector<TokenId> prompt(kPromptLen);
  for (size_t i = 0; i < prompt.size(); ++i) {
    prompt[i] = static_cast<TokenId>(3 + i * 7 % 120);
  }
  request.prompt = prompt;
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = 30;
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

class SleepTest : public testing::TestWithParam<const char*> {};

TEST_P(SleepTest, AnswersAreTheSameAfterEveryKindOfSleep) {
  const EngineConfig config = config_of(tiny(GetParam()));
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
                         testing::Values("llama_gqa_tied/model.gguf", "qwen3_two_groups"),
                         [](const auto& test) { return std::to_string(test.index); });

TEST(SleepSteps, NoneRunsWhileTheWorkerSleeps) {
  RigOptions options;
  options.config = config_of(tiny("llama_gqa_tied/model.gguf"));
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
