// SPDX-License-Identifier: Apache-2.0
// Ranks that divide a model give the answers of one rank: the same tokens under every sampling rule, logprobs within
// rounding. Among themselves the answers of a number of ranks are the same bits under every configuration. The ranks
// are threads of this process. A configuration is tried with some numbers of ranks and not with all.
#include "files/model_files.h"
#include "tests/golden/divided_model.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Axis;
using test::chunks_and_few_blocks;
using test::CommCounts;
using test::deferred_and_serialised;
using test::expect_same_under;
using test::graphs;
using test::known_drafts;
using test::KnownDrafts;
using test::make_requests;
using test::ModelRig;
using test::options_of;
using test::Outcome;
using test::RigOptions;
using test::RigResult;
using test::run;
using test::sync_with_late_masks;
using test::tiny;
using test::Workload;

constexpr float kRounding = 1e-4F;

void expect_near_logits(const RigResult::Top& expected, const RigResult::Top& top) {
  ASSERT_EQ(expected.size(), top.size());
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(expected[i].first, top[i].first);
    EXPECT_NEAR(expected[i].second, top[i].second, kRounding);
  }
}

// Equal tokens; logprobs of tokens and prompts within rounding.
void expect_close(const Outcome& expected, const Outcome& other) {
  ASSERT_EQ(expected.results.size(), other.results.size());
  int64_t num_prompt_logprobs = 0;
  for (const auto& [id, result] : expected.results) {
    SCOPED_TRACE(id);
    const RigResult& mine = other.results.at(id);
    EXPECT_EQ(result.tokens, mine.tokens);
    EXPECT_EQ(result.reason, mine.reason);
    ASSERT_EQ(result.hidden.size(), mine.hidden.size());
    for (size_t i = 0; i < result.hidden.size(); ++i) {
      ASSERT_NEAR(result.hidden[i], mine.hidden[i], kRounding);
    }
    ASSERT_EQ(result.prompt_logprobs.size(), mine.prompt_logprobs.size());
    for (size_t i = 0; i < result.prompt_logprobs.size(); ++i) {
      EXPECT_NEAR(result.prompt_logprobs[i].logprob, mine.prompt_logprobs[i].logprob, kRounding);
      // Below the first 64 logprobs lie so close that rounding may move a token past a neighbour.
      const int32_t rank = result.prompt_logprobs[i].rank;
      EXPECT_NEAR(rank, mine.prompt_logprobs[i].rank, rank < 64 ? 0 : 1);
      expect_near_logits(result.prompt_top[i], mine.prompt_top[i]);
      ++num_prompt_logprobs;
    }
    const auto& answer = expected.answers.at(id);
    const auto& other_answer = other.answers.at(id);
    ASSERT_EQ(answer.logprobs.size(), other_answer.logprobs.size());
    EXPECT_EQ(answer.ranks, other_answer.ranks);
    for (size_t i = 0; i < answer.logprobs.size(); ++i) {
      EXPECT_NEAR(answer.logprobs[i], other_answer.logprobs[i], kRounding);
      expect_near_logits(answer.top[i], other_answer.top[i]);
    }
  }
  EXPECT_GT(num_prompt_logprobs, 0);
}

void set_graphs(RigOptions& options, const char* mode) {
  options.config.cudagraph_mode = mode;
  options.config.cudagraph_capture_sizes = "6,24,128";
}

// Drafts that are right and wrong in turn.
Axis known_drafts_axis(const KnownDrafts& known, int32_t num_drafts) {
  return {"drafts",
          [&known, num_drafts](RigOptions& o) {
            o.runner.max_drafts = num_drafts;
            o.runner.features.extra = {known.factory()};
            set_graphs(o, "full");
          },
          [](ModelRig& rig) {
            const SchedulerStats stats = rig.scheduler().stats();
            return stats.num_accepted_tokens > 0 &&
                   stats.num_accepted_tokens < stats.num_drafted_tokens &&
                   rig.executor().stats().graphs_full > 2;
          }};
}

// Runs the workload with this many ranks: as plainly as possible, then under each axis.
void expect_division_changes_nothing(const Workload& load,
                                     int32_t num_ranks,
                                     const std::vector<Axis>& axes) {
  SCOPED_TRACE(::testing::Message() << num_ranks << " ranks");
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  ModelRig plain(options_of(load, {num_ranks, 1}));
  const Outcome ranks = run(plain, load);
  expect_close(expected, ranks);
  expect_same_under(axes, load, {num_ranks, 1}, ranks);
}

TEST(TensorParallel, TwoRanks) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  expect_division_changes_nothing(load,
                                  2,
                                  {known_drafts_axis(known, 3),
                                   chunks_and_few_blocks(10),
                                   sync_with_late_masks({}),
                                   graphs("piecewise")});
}

// Twice as many ranks as key-value heads, and biases.
TEST(TensorParallel, FourRanks) {
  const Workload load = tiny("qwen2", 24);
  const KnownDrafts known = known_drafts(load);
  expect_division_changes_nothing(load,
                                  4,
                                  {known_drafts_axis(known, 2),
                                   chunks_and_few_blocks(10),
                                   graphs("full"),
                                   graphs("piecewise"),
                                   deferred_and_serialised()});
}

// A rank's rows of Q, K and V, or of gate and up, lie apart in a fused tensor. A rank caps its part of the logits.
TEST(TensorParallel, FusedTensorsAndCappedLogits) {
  for (const char* model : {"phi3_window", "glm4", "gemma2"}) {
    SCOPED_TRACE(model);
    expect_division_changes_nothing(tiny(model, 8), 2, {});
  }
}

// Full attention and a window in two KV groups.
TEST(TensorParallel, TwoKvGroups) {
  const Workload load = tiny("qwen3_two_groups", 16);
  expect_division_changes_nothing(load, 2, {chunks_and_few_blocks(16), deferred_and_serialised()});
}

// A dense layer and one of experts; each rank has a half of every expert.
TEST(TensorParallel, ExpertsOverTwoRanks) {
  const Workload load = tiny("qwen3_moe", 24);
  const KnownDrafts known = known_drafts(load);
  expect_division_changes_nothing(
      load, 2, {known_drafts_axis(known, 3), chunks_and_few_blocks(10), graphs("full")});
}

TEST(TensorParallel, ExpertsOfGgufOverFourRanks) {
  const Workload load = tiny("mixtral/model.gguf", 16);
  expect_division_changes_nothing(load, 4, {chunks_and_few_blocks(10), graphs("piecewise")});
}

TEST(TensorParallel, ASharedExpertOverTwoRanks) {
  const Workload load = tiny("qwen2_moe", 16);
  expect_division_changes_nothing(load, 2, {chunks_and_few_blocks(10), graphs("full")});
}

// Gate and up rows alternate in one tensor; only the first rank adds the biases of down.
TEST(TensorParallel, ExpertsWithBiases) {
  expect_division_changes_nothing(
      tiny("gpt_oss", 16), 2, {chunks_and_few_blocks(16), graphs("full")});
  expect_division_changes_nothing(tiny("gpt_oss", 8), 4, {});
  expect_division_changes_nothing(tiny("gpt_oss_mxfp4", 8), 2, {});
  expect_division_changes_nothing(tiny("gpt_oss_mxfp4/model.gguf", 8), 2, {});
}

// A part of an expert's inputs must be whole groups of 32.
TEST(TensorParallel, Mxfp4ThatCutsThroughAGroupIsRefused) {
  const RigOptions options = options_of(tiny("gpt_oss_mxfp4", 1), {4, 1});
  const auto plan = plan_model(options.config, this_machine());
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("model.layers.0.mlp.experts.down_proj cannot be split over 4 "
                                      "ranks: 64 columns are not 4 parts in multiples of 32"),
            std::string::npos)
      << plan.error().message;
}

// Groups of experts chosen by sigmoids, and a shared expert without a gate.
TEST(TensorParallel, SigmoidsOfExpertsOverTwoRanks) {
  const Workload load = tiny("glm4_moe", 16);
  expect_division_changes_nothing(load, 2, {chunks_and_few_blocks(10), graphs("full")});
}

// Fewer heads of keys than ranks in global layers, layers that read an earlier layer's cache, a table that ranks divide.
TEST(TensorParallel, SharedKeysAndInputsOfLayers) {
  const Workload load = tiny("gemma4_inputs", 16);
  expect_division_changes_nothing(
      load, 2, {chunks_and_few_blocks(32), graphs("full"), deferred_and_serialised()});
}

TEST(TensorParallel, ExpertsBesideTheFeedForward) {
  const Workload load = tiny("gemma4_moe", 16);
  expect_division_changes_nothing(load, 2, {chunks_and_few_blocks(32), graphs("piecewise")});
}

// Random weights are those of the whole model.
TEST(TensorParallel, RandomWeights) {
  const test::TempDir dir;
  test::RandomModel model;
  model.family = "qwen3";
  model.head_dim = 16;
  model.hidden_size = 64;
  model.intermediate_size = 96;
  model.vocab_size = 128;
  model.num_layers = 2;
  Workload load = tiny("", 16);
  load.model = model.write(dir);
  std::filesystem::remove(dir.path() / "model.safetensors");
  const Workload fused = tiny("phi3_window", 8);
  const auto answers = [](const Workload& of, int32_t num_ranks) {
    RigOptions options = options_of(of, {num_ranks, 1});
    options.config.load_format = "dummy";
    ModelRig rig(options);
    return run(rig, of);
  };
  const Outcome alone = answers(load, 1);
  expect_close(alone, answers(load, 2));
  expect_close(alone, answers(load, 4));
  expect_close(answers(fused, 1), answers(fused, 2));
  const Workload experts = tiny("gpt_oss_mxfp4", 8);
  expect_close(answers(experts, 1), answers(experts, 2));
}

// Weights that were dropped are read again, by each rank its part.
TEST(TensorParallel, SleepDropsAndRestoresEveryRanksPart) {
  const Workload load = tiny("qwen2", 8);
  ModelRig rig(options_of(load, {2, 1}));
  const Request request = make_requests(load).front();
  rig.add(request);
  const std::vector<TokenId> before = rig.run().at(request.id).tokens;
  rig.executor().call(SleepRanks{2}).get();
  rig.executor().call(WakeRanks{}).get();
  rig.scheduler().reset_prefix_cache();
  rig.add(request);
  EXPECT_EQ(rig.run().at(request.id).tokens, before);
}

// Two rows of logits are fewer than four ranks, so two of these draw nothing.
TEST(TensorParallel, OperationsOfAStep) {
  RigOptions options = options_of(tiny("qwen2", 1), {4, 1});
  options.config.async_scheduling = false;
  ModelRig rig(options);
  Request request;
  request.id = 1;
  request.prompt = {5, 6, 7};
  request.max_tokens = 20;
  rig.add(request);
  request.id = 2;
  rig.add(request);
  while (rig.scheduler().stats().num_steps < 4) {
    ASSERT_TRUE(rig.tick());
  }
  const CommCounts before = rig.ranks().counts(3);
  const int64_t steps = rig.scheduler().stats().num_steps;
  while (rig.scheduler().stats().num_steps < steps + 1) {
    ASSERT_TRUE(rig.tick());
  }
  constexpr int64_t kLayers = 2;
  EXPECT_EQ(rig.ranks().counts(3) - before,
            (CommCounts{.all_reduces = 2 * kLayers + 1, .all_gathers = 1, .exchanges = 1}));
}

// 9 heads and 3 key-value heads.
TEST(TensorParallel, SmolLm2OverThreeRanks) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  const Workload load{"smollm2", "float32", 49152, 8, 90, 12};
  expect_division_changes_nothing(load, 3, {});
}

}  // namespace
}  // namespace warprow
