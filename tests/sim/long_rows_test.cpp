// SPDX-License-Identifier: Apache-2.0
// Rows of up to a million tokens: memory follows the tokens that rows hold.
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/sanitizers.h"
#include "tests/support/temp_dir.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RandomModel;
using test::RigOptions;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int32_t kMillion = 1 << 20;

RandomModel tiny(int32_t window, int32_t head_dim = 16) {
  return {.family = window > 0 ? "mistral" : "llama",
          .head_dim = head_dim,
          .num_heads = 2,
          .num_kv_heads = 1,
          .num_layers = 1,
          .hidden_size = 32,
          .intermediate_size = 32,
          .vocab_size = 64,
          .window = window,
          .max_position = kMillion};
}

ModelPlan plan_of(const std::string& model, int32_t max_model_len, const char* device) {
  EngineConfig config;
  config.model = model;
  config.device = device;
  config.max_num_seqs = 1024;
  config.max_model_len = max_model_len;
  if (config.device == "cpu") {
    config.kv_cache_memory_bytes = 512 * kMiB;
  }
  return value_or_throw(plan_model(config, this_machine(config.device)));
}

// Without token pages, 1,024 rows of 1 M tokens took 4 GiB of token history, 8 GiB of pinned prompts, 256 MiB of block
// tables per group and three times that for the upload ring. With 32 k tokens per row they took a 32nd.
TEST(LongRows, AThousandRowsOfAMillionTokensCostWhatTheyHold) {
  for (const int32_t window : {0, 128}) {
    const test::TempDir dir;
    const std::string model = tiny(window, 64).write(dir);  // a head size that GPU kernels support
    for (const char* device : {"cpu", "h200"}) {
      SCOPED_TRACE(std::string(device) + ", window " + std::to_string(window));
      const ModelPlan plan = plan_of(model, kMillion, device);
      const TokenPages& pages = plan.runner.token_pages;
      EXPECT_GE(pages.max_tokens(), kMillion) << "room for one request of that length";
      EXPECT_LE(pages.max_tokens(), int64_t{33} * kMillion);
      constexpr int64_t kAt32k = 384 * kMiB;  // tokens and prompts without token pages
      EXPECT_LE(plan.memory.pinned_bytes, kAt32k);
      EXPECT_LE(plan.memory.state_bytes, kAt32k);
    }
  }
}

#if WR_ASAN || WR_TSAN
constexpr int32_t kLongPrompt = kMillion / 16;
#else
constexpr int32_t kLongPrompt = kMillion - 8;
#endif

// A window of 128 tokens, so the request is many times longer than the cache. It runs twice with different chunk sizes;
// the results must be equal.
TEST(LongRows, APromptOfAMillionTokensRunsThroughAWindow) {
  const test::TempDir dir;
  RigOptions options;
  options.config.model = tiny(128).write(dir);
  options.config.max_num_seqs = 1024;
  options.config.max_model_len = kMillion;
  options.config.kv_cache_memory_bytes = 1 * kMiB;
  options.debug_checks = false;
  Request request;
  request.id = 1;
  for (int32_t i = 0; i < kLongPrompt; ++i) {
    request.prompt.push_back(static_cast<TokenId>((int64_t{i} * 7919 + i / 64) % 64));
  }
  request.max_tokens = 8;
  request.params.repetition_penalty = 1.2F;  // reads every token of the prompt
  std::vector<TokenId> first;
  for (const int32_t chunk : {8192, 4096}) {
    options.config.max_num_batched_tokens = chunk;
    ModelRig rig(options);
    EXPECT_LT(rig.executor().model_facts().kv.num_blocks * 16, kLongPrompt / 3);
    rig.add(request);
    const std::vector<TokenId> tokens = rig.run().at(1).tokens;
    EXPECT_EQ(tokens.size(), 8U);
    if (first.empty()) {
      first = tokens;
    }
    EXPECT_EQ(tokens, first);
  }
}

}  // namespace
}  // namespace warprow
