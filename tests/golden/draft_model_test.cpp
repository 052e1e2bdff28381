// SPDX-License-Identifier: Apache-2.0
// A model that drafts for another one. Where it drafts for itself every draft of a greedy row is right, as long as its keys
// and values are: a row's prompt in chunks, prefixes from the cache, preemptions and accepted drafts must all leave them
// complete. Tests are named after mistakes that other engines have made.
#include "files/model_files.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/source_path.h"
#include "worker/machine_facts.h"
#include "worker/model_plan.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::ModelRig;
using test::RandomModel;
using test::RigOptions;
using test::RigResult;
using test::small_options;
using ::testing::HasSubstr;

RigOptions itself(int32_t num_drafts) {
  const std::string model = test::source_path("tests/golden/tiny/llama_gqa_tied/model.gguf");
  RigOptions options = small_options(model);
  options.config.speculative_config = test::draft_model_config(model, num_drafts);
  return options;
}

Request greedy(uint64_t id, int32_t prompt_len, int32_t max_tokens) {
  Request request;
  request.id = id;
  for (int32_t i = 0; i < prompt_len; ++i) {
    request.prompt.push_back(3 + (i * i + 7 * static_cast<int32_t>(id)) % 120);
  }
  request.max_tokens = max_tokens;
  return request;
}

// Runs the requests, and expects that no draft was rejected but those behind a request's end. A row's first step behind its
// prompt has drafts, too.
SchedulerStats expect_all_right(const RigOptions& options,
                                const std::vector<Request>& requests,
                                int32_t num_drafts) {
  ModelRig rig(options);
  for (const Request& request : requests) {
    rig.add(request);
  }
  rig.run();
  rig.scheduler().check_invariants();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_GT(stats.num_accepted_tokens, 0);
  const auto behind = static_cast<int64_t>(requests.size()) * 2 * num_drafts;
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - behind);
  return stats;
}

TEST(DraftModel, DraftsForItselfAreRight) {
  for (const int32_t num_drafts : {1, 3, 7}) {
    SCOPED_TRACE(num_drafts);
    const int32_t max_tokens = 1 + 12 * (1 + num_drafts);
    ModelRig rig(itself(num_drafts));
    rig.add(greedy(1, 20, max_tokens));
    rig.run();
    const SchedulerStats stats = rig.scheduler().stats();
    EXPECT_EQ(stats.num_accepted_tokens, 12 * num_drafts);
    EXPECT_LE(rig.executor().stats().steps, 1 + 12 + 2);
  }
}

// vllm#14649: keys and values of accepted drafts, and of the last draft, which no forward had.
TEST(DraftModel, AcceptedDraftsLeaveCompleteKeys) {
  RigOptions options = itself(5);
  options.runner.token_pages = {.page_size = 8, .num_pages = 200};
  expect_all_right(options, {greedy(1, 5, 200), greedy(2, 61, 150), greedy(3, 1, 100)}, 5);
}

TEST(DraftModel, APromptInChunks) {
  RigOptions options = itself(3);
  options.config.max_num_batched_tokens = 16;
  options.config.max_num_seqs = 4;
  const SchedulerStats stats =
      expect_all_right(options, {greedy(1, 100, 40), greedy(2, 45, 40), greedy(3, 70, 40)}, 3);
  EXPECT_GT(stats.num_partial_prefill_steps, 0);
}

// vllm#53670, vllm#41838: hits of a prefix drop no block, and acceptance stays.
TEST(DraftModel, APrefixFromTheCache) {
  RigOptions options = itself(3);
  options.config.enable_prefix_caching = true;
  ModelRig rig(options);
  rig.add(greedy(1, 65, 40));
  rig.run();
  Request again = greedy(1, 65, 40);
  again.id = 2;
  rig.add(again);
  rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_EQ(stats.num_prefix_hit_tokens, 64);
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - 2 * 2 * 3);
  EXPECT_EQ(rig.results().at(1).tokens, rig.results().at(2).tokens);
}

// The prefix that both prompts share ends with a block, and another token follows.
TEST(DraftModel, AHitAtTheEdgeOfABlockWithAnotherNextToken) {
  RigOptions options = itself(3);
  options.config.enable_prefix_caching = true;
  ModelRig rig(options);
  Request request = greedy(1, 64, 40);
  request.prompt.push_back(7);
  rig.add(request);
  rig.run();
  request.id = 2;
  request.prompt.back() = 8;
  rig.add(request);
  rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_EQ(stats.num_prefix_hit_tokens, 64);
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - 2 * 2 * 3);
}

TEST(DraftModel, APreemptedRow) {
  RigOptions options = itself(3);
  options.config.max_model_len = 128;
  const ModelPlan plan = value_or_throw(plan_model(options.config, this_machine()));
  options.config.kv_cache_memory_bytes = 14 * plan.kv_cache.block_bytes();
  const SchedulerStats stats =
      expect_all_right(options, {greedy(1, 50, 60), greedy(2, 45, 60), greedy(3, 40, 60)}, 3);
  EXPECT_GT(stats.num_preemptions, 0);
}

// The same keys and values in 8 bits yield the same tokens.
TEST(DraftModel, AnEightBitCache) {
  RigOptions options = itself(3);
  options.config.kv_cache_dtype = "fp8_e4m3";
  expect_all_right(options, {greedy(1, 30, 60), greedy(2, 61, 40)}, 3);
}

// Recorded sampling has the forwards of the draft model in it, for more rows than the step has.
TEST(DraftModel, RecordedForwards) {
  RigOptions options = itself(3);
  options.config.cudagraph_mode = "full";
  options.config.cudagraph_capture_sizes = "4,12,32,128";
  options.device.mode = cpu::CpuStreamMode::kDeferred;
  options.device.shuffle = true;
  options.device.seed = 5;
  ModelRig rig(options);
  for (uint64_t id = 1; id <= 3; ++id) {
    rig.add(greedy(id, 20, 60));
  }
  rig.run();
  const SchedulerStats stats = rig.scheduler().stats();
  EXPECT_GE(stats.num_accepted_tokens, stats.num_drafted_tokens - 3 * 2 * 3);
  EXPECT_GT(rig.executor().stats().graphs_full, 4);
}

// Another model, with other layers, heads and blocks: its drafts are rarely right, and change nothing.
TEST(DraftModel, AnotherModelChangesNothing) {
  const test::TempDir large_dir;
  const test::TempDir small_dir;
  const std::string large = RandomModel{.vocab_size = 96, .seed = 1}.write(large_dir);
  const std::string small = RandomModel{.family = "qwen3",
                                        .head_dim = 32,
                                        .num_heads = 2,
                                        .num_kv_heads = 1,
                                        .num_layers = 2,
                                        .hidden_size = 64,
                                        .intermediate_size = 96,
                                        .vocab_size = 96,
                                        .seed = 2}
                                .write(small_dir);
  const auto run = [&](const RigOptions& options) {
    ModelRig rig(options);
    for (uint64_t id = 1; id <= 6; ++id) {
      Request request = greedy(id, 10 + 9 * static_cast<int32_t>(id), 30);
      for (TokenId& token : request.prompt) {
        token %= 96;
      }
      request.params.num_logprobs = 1;
      request.params.temperature = id % 2 == 0 ? 0.0F : 0.8F;
      request.params.seed = id;
      rig.add(request);
    }
    std::map<uint64_t, RigResult> results = rig.run();
    rig.scheduler().check_invariants();
    return std::pair(results, rig.scheduler().stats());
  };
  const auto [expected, plain] = run(small_options(large));
  for (const int32_t num_drafts : {1, 4, 12}) {
    SCOPED_TRACE(num_drafts);
    RigOptions options = small_options(large);
    options.config.speculative_config = test::draft_model_config(small, num_drafts);
    const auto [results, stats] = run(options);
    EXPECT_GT(stats.num_drafted_tokens, 0);
    EXPECT_LT(stats.num_accepted_tokens, stats.num_drafted_tokens);
    for (const auto& [id, result] : results) {
      EXPECT_EQ(result.tokens, expected.at(id).tokens) << id;
      EXPECT_EQ(result.top, expected.at(id).top) << id;
    }
  }
}

TEST(DraftModel, TheRealModelForItself) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  RigOptions options = small_options("smollm2");
  options.config.dtype = "auto";
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  options.config.speculative_config = test::draft_model_config("smollm2", 4);
  ModelRig rig(options);
  rig.add(greedy(1, 12, 21));
  rig.run();
  EXPECT_EQ(rig.scheduler().stats().num_accepted_tokens, 16);
}

TEST(DraftModel, WhatDoesNotFitIsRefused) {
  const test::TempDir dir;
  const std::string other = RandomModel{.vocab_size = 96}.write(dir);
  const auto error_of = [](const RigOptions& options) {
    const auto plan = plan_model(options.config, this_machine());
    return plan ? std::string() : plan.error().message;
  };
  RigOptions options = itself(3);
  options.config.speculative_config = test::draft_model_config(other, 3);
  EXPECT_THAT(error_of(options),
              HasSubstr("has a vocabulary of 96 tokens, the model that it drafts for 128"));
  options.config.speculative_config = test::draft_model_config("no/such-model", 3);
  EXPECT_THAT(error_of(options), HasSubstr("--speculative-config: model: "));
}

// The plan counts the draft model's weights, keys and values, and everything that its forwards need. That it counts all of
// it is checked at every start.
TEST(DraftModel, ThePlanCountsIt) {
  RigOptions plain = itself(3);
  plain.config.speculative_config.clear();
  const ModelPlan without = value_or_throw(plan_model(plain.config, this_machine()));
  const ModelPlan with = value_or_throw(plan_model(itself(3).config, this_machine()));
  // The draft model's weights begin at a multiple of the alignment.
  EXPECT_GE(with.memory.weights_bytes, 2 * without.memory.weights_bytes);
  EXPECT_LT(with.memory.weights_bytes,
            2 * without.memory.weights_bytes + static_cast<int64_t>(Arena::kAlignment));
  EXPECT_EQ(with.memory.checkpoint_bytes, 2 * without.memory.checkpoint_bytes);
  EXPECT_EQ(with.memory.kv_block_bytes, 2 * without.memory.kv_block_bytes);
  EXPECT_GT(with.memory.workspace_bytes, without.memory.workspace_bytes);
}

}  // namespace
}  // namespace warprow
