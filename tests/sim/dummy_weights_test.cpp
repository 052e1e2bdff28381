// SPDX-License-Identifier: Apache-2.0
// --load-format dummy through the whole engine. The model has only a config.json.
#include "engine/engine.h"
#include "tests/support/temp_dir.h"

#include <condition_variable>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using test::TempDir;

json tiny_config(const std::string& architecture) {
  return {{"architectures", {architecture}},
          {"num_hidden_layers", 3},
          {"hidden_size", 72},
          {"num_attention_heads", 6},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"intermediate_size", 100},
          {"vocab_size", 501},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0}};
}

EngineConfig dummy(const TempDir& dir) {
  EngineConfig config;
  config.model = dir.path().string();
  config.load_format = "dummy";
  config.device = "cpu";
  config.threads = 2;
  config.kv_cache_memory_bytes = 8 << 20;
  return config;
}

// A new engine's greedy answer to a prompt of token ids.
std::vector<TokenId> answer_with(const EngineConfig& config) {
  const auto engine = load_engine(config);
  GenerationRequest request;
  request.prompt = std::vector<TokenId>{5, 400, 77, 12};
  request.sampling.temperature = 0.0;
  request.sampling.max_tokens = 40;
  request.sampling.ignore_eos = true;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<TokenId> tokens;
  bool done = false;
  engine->submit(value_or_throw(engine->validate(request)), [&](const RequestUpdate& update) {
    const std::scoped_lock lock(mutex);
    tokens.insert(tokens.end(), update.token_ids.begin(), update.token_ids.end());
    done = update.finish_reason != FinishReason::kNone;
    changed.notify_one();
  });
  std::unique_lock lock(mutex);
  changed.wait(lock, [&] { return done; });
  return tokens;
}

TEST(DummyWeights, AConfigIsEnoughAndEveryStartIsTheSame) {
  for (const char* architecture : {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"}) {
    for (const bool tied : {false, true}) {
      SCOPED_TRACE(::testing::Message() << architecture << ", tied " << tied);
      const TempDir dir;
      json config = tiny_config(architecture);
      config["tie_word_embeddings"] = tied;
      dir.write("config.json", config.dump());
      const std::vector<TokenId> tokens = answer_with(dummy(dir));
      EXPECT_EQ(tokens.size(), 40U);
      EXPECT_GT(std::set<TokenId>(tokens.begin(), tokens.end()).size(), 4U)
          << "the logits are constant";
      EXPECT_EQ(answer_with(dummy(dir)), tokens);
    }
  }
}

TEST(DummyWeights, WithoutTheFlagWeightsAreMissed) {
  const TempDir dir;
  dir.write("config.json", tiny_config("LlamaForCausalLM").dump());
  EngineConfig config = dummy(dir);
  config.load_format = "auto";
  try {
    load_engine(config);
    FAIL() << "loaded nothing";
  } catch (const StartupError& error) {
    EXPECT_NE(std::string(error.what()).find("holds no model"), std::string::npos) << error.what();
  }
}

TEST(DummyWeights, AConfigWithoutAVocabularyIsRefused) {
  const TempDir dir;
  json config = tiny_config("LlamaForCausalLM");
  config.erase("vocab_size");
  dir.write("config.json", config.dump());
  try {
    load_engine(dummy(dir));
    FAIL() << "loaded nothing";
  } catch (const StartupError& error) {
    EXPECT_NE(std::string(error.what()).find("vocab_size"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace warprow
