// SPDX-License-Identifier: Apache-2.0
// Models whose layers keep a state beside those of attention: the same answers, bit for bit, however prompts are cut into
// steps, wherever a cached prefix ends, and under the configurations of other models.
#include "tests/golden/divided_model.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/mtp_case.h"
#include "tests/support/random_hybrid.h"
#include "tests/support/tiny_golden.h"
#include "wire/token_lists.h"

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Axis;
using test::deferred_and_serialised;
using test::expect_same_under;
using test::graphs;
using test::ModelRig;
using test::options_of;
using test::Outcome;
using test::RigOptions;
using test::RigResult;
using test::run;
using test::tiny;
using test::tiny_options;
using test::Workload;

std::vector<TokenId> random_prompt(int32_t len, uint32_t seed) {
  std::vector<TokenId> ids;
  uint32_t x = seed * 7919 + 13;
  for (int32_t i = 0; i < len; ++i) {
    x = x * 1664525 + 1013904223;
    ids.push_back(static_cast<TokenId>(3 + (x >> 8) % 125));
  }
  return ids;
}

RigOptions options_for(const std::string& model, bool prefix_caching) {
  RigOptions options = tiny_options(model);
  options.config.kv_cache_memory_bytes = 8 << 20;
  options.config.enable_prefix_caching = prefix_caching;
  return options;
}

// The answer to a prompt; other requests of the rig are done.
RigResult answer(ModelRig& rig, const std::vector<TokenId>& prompt, int32_t max_tokens = 6) {
  static uint64_t last_id = 0;
  Request request;
  request.id = ++last_id;
  request.prompt = prompt;
  request.max_tokens = max_tokens;
  request.params.num_logprobs = 5;
  rig.add(request);
  RigResult result = rig.run().at(request.id);
  rig.scheduler().check_invariants();
  return result;
}

void expect_same_answer(const RigResult& expected, const RigResult& other) {
  EXPECT_EQ(expected.tokens, other.tokens);
  EXPECT_EQ(expected.top, other.top);
}

class Hybrid : public ::testing::TestWithParam<const char*> {};

// With chunks of every kind the last block end of the prompt gets a checkpoint, which the same prompt finds.
TEST_P(Hybrid, ChunksDoNotMatter) {
  const std::vector<TokenId> prompt = random_prompt(100, 3);
  RigOptions options = options_for(GetParam(), false);
  options.config.max_num_batched_tokens = 128;
  ModelRig whole(options);
  const RigResult expected = answer(whole, prompt, 24);
  for (const int32_t chunk : {1, 2, 3, 7, 15, 16, 17, 33, 48, 49, 99}) {
    SCOPED_TRACE(chunk);
    RigOptions cut = options_for(GetParam(), true);
    cut.config.max_num_seqs = 1;
    cut.config.max_num_batched_tokens = chunk;
    ModelRig rig(cut);
    expect_same_answer(expected, answer(rig, prompt, 24));
    EXPECT_EQ(rig.scheduler().stats().num_prefix_hit_tokens, 0);
    expect_same_answer(expected, answer(rig, prompt, 24));
    EXPECT_EQ(rig.scheduler().stats().num_prefix_hit_tokens, 96);
  }
}

// For prompts that end around each block's end: the same prompt again, and a longer one.
TEST_P(Hybrid, PrefixHitsAtEveryBlockEdge) {
  const std::vector<TokenId> longest = random_prompt(70, 1);
  ModelRig plain(options_for(GetParam(), false));
  const RigResult of_longest = answer(plain, longest);
  for (const int32_t len : {1, 15, 16, 17, 18, 31, 32, 33, 47, 48, 49, 50, 63, 64, 65, 66}) {
    SCOPED_TRACE(len);
    const std::vector<TokenId> prompt(longest.begin(), longest.begin() + len);
    const RigResult expected = answer(plain, prompt);
    ModelRig rig(options_for(GetParam(), true));
    const auto hits = [&] { return rig.scheduler().stats().num_prefix_hit_tokens; };
    expect_same_answer(expected, answer(rig, prompt));
    expect_same_answer(expected, answer(rig, prompt));
    EXPECT_EQ(hits(), (len - 1) / 16 * 16);
    expect_same_answer(of_longest, answer(rig, longest));
    EXPECT_EQ(hits(), 2 * ((len - 1) / 16 * 16));
  }
}

// Prompts with equal first 40 tokens. The second finds blocks of attention for 32 of them but no state, and leaves one
// there for the third.
TEST_P(Hybrid, ASharedPrefixGetsACheckpoint) {
  ModelRig plain(options_for(GetParam(), false));
  RigOptions options = options_for(GetParam(), true);
  options.config.max_num_batched_tokens = 128;
  ModelRig rig(options);
  std::vector<int64_t> hits;
  for (uint32_t i = 0; i < 4; ++i) {
    std::vector<TokenId> prompt = random_prompt(40, 5);
    const std::vector<TokenId> rest = random_prompt(30, 10 + i);
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    expect_same_answer(answer(plain, prompt), answer(rig, prompt));
    hits.push_back(rig.scheduler().stats().num_prefix_hit_tokens);
  }
  EXPECT_EQ(hits, (std::vector<int64_t>{0, 0, 32, 64}));
}

Axis prefix_caching() {
  return {"prefix_caching",
          [](RigOptions& o) { o.config.enable_prefix_caching = true; },
          [](ModelRig& rig) { return rig.scheduler().stats().num_prefix_hit_tokens > 0; }};
}

// A pool that is too small for the rows, which compute their prompts in small chunks.
Axis few_blocks() {
  return {"few_blocks",
          [](RigOptions& o) {
            const ModelPlan plan = value_or_throw(plan_model(o.config, this_machine()));
            o.config.kv_cache_memory_bytes = 22 * plan.kv_cache.block_bytes();
            o.config.max_model_len = 128;
            o.config.max_num_seqs = 8;
            o.config.max_num_batched_tokens = 16;
            o.config.enable_prefix_caching = true;
          },
          [](ModelRig& rig) {
            const SchedulerStats stats = rig.scheduler().stats();
            return stats.num_preemptions > 0 && stats.num_partial_prefill_steps > 0;
          }};
}

Axis two_threads() {
  return {"two_threads",
          [](RigOptions& o) { o.device.num_threads = 2; },
          [](ModelRig& rig) { return rig.device().facts().num_threads == 2; }};
}

// A state would take in the token of a withheld row twice, so rows wait for their masks.
Axis late_masks() {
  return {"late_masks",
          [](RigOptions& o) { o.config.grammar_mask_delay_us = 2'000; },
          [](ModelRig& rig) { return rig.num_withheld() == 0; }};
}

TEST_P(Hybrid, ConfigurationsDoNotMatter) {
  const Workload load = tiny(GetParam(), 24);
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  expect_same_under({few_blocks(),
                     graphs("full"),
                     graphs("piecewise"),
                     deferred_and_serialised(),
                     prefix_caching(),
                     two_threads(),
                     late_masks()},
                    load,
                    {},
                    expected);
}

TEST_P(Hybrid, StagesDoNotMatter) {
  const Workload load = tiny(GetParam(), 12);
  ModelRig alone(options_of(load, {}));
  expect_same_under({prefix_caching(), graphs("piecewise")}, load, {1, 2}, run(alone, load));
}

// Two ranks have a key head each, with its value heads.
TEST_P(Hybrid, RanksAgreeWithinRounding) {
  const Workload load = tiny(GetParam(), 12);
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  ModelRig two(options_of(load, {2, 1}));
  const Outcome ranks = run(two, load);
  for (const auto& [id, result] : expected.results) {
    EXPECT_EQ(result.tokens, ranks.results.at(id).tokens) << id;
    const auto& top = expected.answers.at(id).top;
    for (size_t i = 0; i < top.size(); ++i) {
      for (size_t k = 0; k < top[i].size(); ++k) {
        EXPECT_NEAR(top[i][k].second, ranks.answers.at(id).top[i][k].second, 1e-4);
      }
    }
  }
  expect_same_under({prefix_caching(), graphs("full")}, load, {2, 1}, ranks);
}

// Adds drafts of which two of three are right, three for each row.
std::vector<Axis> with_drafts(std::vector<Axis> axes, const test::KnownDrafts& known) {
  for (Axis& axis : axes) {
    axis.set = [set = axis.set, &known](RigOptions& o) {
      o.runner.max_drafts = 3;
      o.runner.features.extra = {known.factory()};
      set(o);
    };
    axis.was_active = [was_active = axis.was_active](ModelRig& rig) {
      const SchedulerStats stats = rig.scheduler().stats();
      return was_active(rig) && stats.num_accepted_tokens > 0 &&
             stats.num_accepted_tokens < stats.num_drafted_tokens;
    };
  }
  return axes;
}

TEST_P(Hybrid, DraftsDoNotMatter) {
  const Workload load = tiny(GetParam(), 24);
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  const test::KnownDrafts known = test::known_drafts(load);
  const std::vector<Axis> axes = {few_blocks(),
                                  graphs("full"),
                                  graphs("piecewise"),
                                  deferred_and_serialised(),
                                  prefix_caching(),
                                  two_threads(),
                                  late_masks()};
  expect_same_under(with_drafts(axes, known), load, {}, expected);
}

// Each rank has the states of its own heads, into which the same accepted drafts enter.
TEST_P(Hybrid, DraftsOverRanksDoNotMatter) {
  const Workload load = tiny(GetParam(), 24);
  ModelRig two(options_of(load, {2, 1}));
  const Outcome expected = run(two, load);
  const test::KnownDrafts known = test::known_drafts(load);
  expect_same_under(
      with_drafts({few_blocks(), graphs("full"), prefix_caching()}, known), load, {2, 1}, expected);
}

// vllm#52942, #39273: rows with accepted drafts in one step and none in the next one. Answers are of two tokens by chance, so
// drafts are right about as often as they pay. Then the same prompts from the prefix cache (vllm#43559,
// #47194).
TEST_P(Hybrid, AStepWithoutDraftsFindsTheAcceptedOnes) {
  RigOptions plain = options_for(GetParam(), true);
  plain.config.max_num_seqs = 3;
  RigOptions options = plain;
  options.config.speculative_config = test::ngram_config(4, /*adaptive=*/true);
  std::map<RowId, int32_t> drafts;  // of a row in its last step
  int num_ends = 0;                 // steps without drafts behind one with them
  options.edit_step = [&](SchedulerOutput& step) {
    for (const ScheduledRow& row : step.scheduled) {
      num_ends += drafts[row.row] > 0 && row.num_logits == 1 ? 1 : 0;
      drafts[row.row] = row.num_drafts;
    }
  };
  ModelRig without(plain);
  ModelRig with(options);
  uint64_t id = 0;
  for (const uint64_t seed : {1, 2}) {
    for (int32_t i = 0; i < 8; ++i) {
      Request request;
      request.id = ++id;
      request.prompt = random_prompt(20 + 5 * i, static_cast<uint32_t>(i));
      request.max_tokens = 60;
      request.params.temperature = 1.0F;
      request.params.seed = seed * 100 + static_cast<uint64_t>(i);
      request.params.num_logprobs = 2;
      TokenLists lists;
      lists.biases = {{9, 40.0F}, {60, 40.0F}};
      request.token_lists = pack_token_lists(lists);
      request.params.flags |= SamplingParams::kHasTokenLists;
      without.add(request);
      with.add(request);
    }
    without.run();
    with.run();
  }
  for (const auto& [request, result] : without.results()) {
    SCOPED_TRACE(request);
    expect_same_answer(result, with.results().at(request));
  }
  const SchedulerStats stats = with.scheduler().stats();
  EXPECT_GT(num_ends, 10);
  EXPECT_GT(stats.num_accepted_tokens, 10);
  EXPECT_GT(stats.num_prefix_hit_tokens, 0);
}

INSTANTIATE_TEST_SUITE_P(All,
                         Hybrid,
                         ::testing::Values("qwen3_next", "qwen3_5_text"),
                         [](const auto& test_case) { return std::string(test_case.param); });

TEST(HybridPlan, CountsStatesInPagesOfAttention) {
  const ModelPlan plan =
      value_or_throw(plan_model(tiny_options("qwen3_5_text").config, this_machine()));
  ASSERT_EQ(plan.kv.groups.size(), 4U);
  EXPECT_EQ(plan.kv.groups[0].kind, KvKind::kState);
  // 4 heads * (3 * 64 inputs of the convolution + 16 * 32) floats in pages of 16 tokens * 2 heads * 2 * 32 floats
  EXPECT_EQ(plan.kv.groups[0].state_pages, 2);
  EXPECT_EQ(plan.kv.groups[3].kind, KvKind::kFull);
  EXPECT_EQ(plan.kv_cache.block_bytes(), 16 * 2 * 2 * 32 * 4);
}

// The layer that predicts further tokens, beside layers with a state.
TEST(HybridMtp, DraftsOfTheModelsOwnLayer) {
  for (const auto& [num_experts, num_ranks] : {std::pair{0, 1}, std::pair{4, 1}, std::pair{4, 2}}) {
    SCOPED_TRACE(::testing::Message() << num_experts << " experts, " << num_ranks << " ranks");
    test::RandomHybrid model;
    model.hidden_size = 64;
    model.intermediate_size = 64;
    model.num_experts = num_experts;
    model.num_chosen = 2;
    model.vocab_size = 32;
    model.mtp = true;
    const test::TempDir dir;
    RigOptions plain = test::head_target_options();
    plain.config.model = model.write(dir);
    plain.config.tensor_parallel_size = num_ranks;
    RigOptions options = plain;
    options.config.speculative_config = test::mtp_config(3);
    options.config.enable_prefix_caching = true;
    ModelRig without(plain);
    ModelRig with(options);
    for (uint64_t id = 1; id <= 4; ++id) {
      Request request;
      request.id = id;
      request.max_tokens = 60;
      request.params.num_logprobs = 2;
      for (int32_t i = 0; i < 12 * static_cast<int32_t>(id); ++i) {
        request.prompt.push_back((3 + i * i + static_cast<int32_t>(id)) % 32);
      }
      without.add(request);
      with.add(request);
      with.run();
      request.id += 10;  // the prompt again, whose last but one block end has a state
      with.add(request);
    }
    const auto& results = with.run();
    for (const auto& [id, result] : without.run()) {
      for (const uint64_t same : {id, id + 10}) {
        SCOPED_TRACE(same);
        expect_same_answer(result, results.at(same));
      }
    }
    const SchedulerStats stats = with.scheduler().stats();
    EXPECT_GE(stats.num_prefix_hit_tokens, 16);
    EXPECT_GT(stats.num_accepted_tokens, 5);
    EXPECT_LT(stats.num_accepted_tokens, stats.num_drafted_tokens);
    with.scheduler().check_invariants();
  }
}

TEST(HybridPlan, DraftsOverStagesAreRefused) {
  RunnerOptions runner;
  runner.max_drafts = 2;
  EngineConfig config = tiny_options("qwen3_next").config;
  EXPECT_TRUE(plan_model(config, this_machine(), runner));
  config.pipeline_parallel_size = 2;
  const auto plan = plan_model(config, this_machine(), runner);
  ASSERT_FALSE(plan.has_value());
  EXPECT_NE(plan.error().message.find("speculative decoding with layers that keep a state"),
            std::string::npos);
}

}  // namespace
}  // namespace warprow
