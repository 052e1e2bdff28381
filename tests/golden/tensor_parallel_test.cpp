// SPDX-License-Identifier: Apache-2.0
// Ranks that divide a model give the answers of one rank: the same tokens under every sampling rule, logprobs within
// rounding. Among themselves the answers of a number of ranks are the same bits under every configuration. The ranks
// are threads of this process. A configuration is tried with some numbers of ranks and not with all.
#include "files/model_files.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_model.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Answers;
using test::answers_of;
using test::base_options;
using test::CommCounts;
using test::DraftKind;
using test::KnownDrafts;
using test::make_requests;
using test::ModelRig;
using test::RigOptions;
using test::RigResult;
using test::Workload;

constexpr float kRounding = 1e-4F;

Workload tiny(const std::string& model, int32_t num_requests) {
  return {test::source_path("tests/golden/tiny/") + model, "float32", 128, num_requests, 100, 24};
}

RigOptions options_of(const Workload& load, int32_t num_ranks) {
  RigOptions options = base_options(load);
  options.config.tensor_parallel_size = num_ranks;
  options.config.enable_hidden_states = true;
  return options;
}

struct Outcome {
  Answers answers;
  std::map<uint64_t, RigResult> results;
};

// Some requests also ask for logprobs of their prompt (test::set_every_rule) or for hidden states.
Outcome run(ModelRig& rig, const Workload& load) {
  std::vector<Request> requests = make_requests(load);
  for (Request& request : requests) {
    if (request.id % 7 == 0) {
      request.params.flags |= SamplingParams::kOutputHidden;
    }
    test::add_request(rig, request, &test::grammar_of(load));
  }
  const auto& results = rig.run();
  rig.scheduler().check_invariants();
  return {answers_of(requests, results), results};
}

void expect_near(const RigResult::Top& expected, const RigResult::Top& top) {
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
      EXPECT_EQ(result.prompt_logprobs[i].rank, mine.prompt_logprobs[i].rank);
      expect_near(result.prompt_top[i], mine.prompt_top[i]);
      ++num_prompt_logprobs;
    }
    const auto& answer = expected.answers.at(id);
    const auto& other_answer = other.answers.at(id);
    ASSERT_EQ(answer.logprobs.size(), other_answer.logprobs.size());
    EXPECT_EQ(answer.ranks, other_answer.ranks);
    for (size_t i = 0; i < answer.logprobs.size(); ++i) {
      EXPECT_NEAR(answer.logprobs[i], other_answer.logprobs[i], kRounding);
      expect_near(answer.top[i], other_answer.top[i]);
    }
  }
  EXPECT_GT(num_prompt_logprobs, 0);
}

void expect_same(const Outcome& expected, const Outcome& other) {
  test::expect_same(expected.answers, other.answers);
  for (const auto& [id, result] : expected.results) {
    const RigResult& mine = other.results.at(id);
    EXPECT_EQ(result.prompt_top, mine.prompt_top) << id;
    EXPECT_EQ(result.hidden, mine.hidden) << id;
  }
}

struct Axis {
  std::string name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

void set_graphs(RigOptions& options, const char* mode) {
  options.config.cudagraph_mode = mode;
  options.config.cudagraph_capture_sizes = "6,24,128";
}

// Drafts that are right and wrong in turn.
Axis drafts(const KnownDrafts& known, int32_t num_drafts) {
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

// A rank's blocks are smaller than those of one that has all heads.
Axis chunks_and_few_blocks(int32_t num_blocks) {
  return {"chunks_and_few_blocks",
          [num_blocks](RigOptions& o) {
            const ModelPlan plan = value_or_throw(plan_model(o.config, this_machine()));
            o.config.kv_cache_memory_bytes = num_blocks * plan.kv_cache.block_bytes();
            o.config.max_model_len = 128;
            o.config.max_num_seqs = 8;
            o.config.max_num_batched_tokens = 16;
            o.config.enable_prefix_caching = true;
          },
          [](ModelRig& rig) {
            const SchedulerStats stats = rig.scheduler().stats();
            return stats.num_preemptions > 0 && stats.num_prefix_hit_tokens > 0 &&
                   stats.num_partial_prefill_steps > 0;
          }};
}

Axis graphs(const char* mode) {
  return {mode,
          [mode](RigOptions& o) { set_graphs(o, mode); },
          [](ModelRig& rig) {
            const ExecutorStats stats = rig.executor().stats();
            return stats.graphs_full + stats.graphs_piecewise > 10 && stats.padded_toks > 0;
          }};
}

Axis sync_with_late_masks() {
  return {"sync_with_late_masks",
          [](RigOptions& o) {
            o.config.async_scheduling = false;
            o.config.grammar_mask_delay_us = 15'000;
          },
          [](ModelRig& rig) {
            return rig.num_withheld() > 0 && rig.executor().stats().max_steps_in_flight == 1;
          }};
}

Axis deferred_and_serialised() {
  return {"deferred_and_serialised",
          [](RigOptions& o) {
            o.device.mode = cpu::CpuStreamMode::kDeferred;
            o.device.shuffle = true;
            o.device.seed = 11;
            o.serialize = true;
          },
          [](ModelRig& rig) { return rig.device().options().shuffle; }};
}

// Runs the workload with this many ranks: as plainly as possible, then under each axis.
void expect_division_changes_nothing(const Workload& load,
                                     int32_t num_ranks,
                                     const std::vector<Axis>& axes) {
  SCOPED_TRACE(::testing::Message() << num_ranks << " ranks");
  ModelRig alone(options_of(load, 1));
  const Outcome expected = run(alone, load);
  ModelRig plain(options_of(load, num_ranks));
  const Outcome ranks = run(plain, load);
  expect_close(expected, ranks);
  for (const Axis& axis : axes) {
    SCOPED_TRACE(axis.name);
    RigOptions options = options_of(load, num_ranks);
    axis.set(options);
    ModelRig rig(options);
    expect_same(ranks, run(rig, load));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
  }
}

KnownDrafts known_drafts(const Workload& load) {
  ModelRig alone(options_of(load, 1));
  const Outcome expected = run(alone, load);
  KnownDrafts known(DraftKind::kMixed, 7);
  for (const Request& request : make_requests(load)) {
    known.expect(request, expected.answers.at(request.id).tokens);
  }
  return known;
}

TEST(TensorParallel, TwoRanks) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  expect_division_changes_nothing(
      load,
      2,
      {drafts(known, 3), chunks_and_few_blocks(10), sync_with_late_masks(), graphs("piecewise")});
}

// Twice as many ranks as key-value heads, and biases.
TEST(TensorParallel, FourRanks) {
  const Workload load = tiny("qwen2", 24);
  const KnownDrafts known = known_drafts(load);
  expect_division_changes_nothing(load,
                                  4,
                                  {drafts(known, 2),
                                   chunks_and_few_blocks(10),
                                   graphs("full"),
                                   graphs("piecewise"),
                                   deferred_and_serialised()});
}

// Full attention and a window in two KV groups.
TEST(TensorParallel, TwoKvGroups) {
  const Workload load = tiny("qwen3_two_groups", 16);
  expect_division_changes_nothing(load, 2, {chunks_and_few_blocks(16), deferred_and_serialised()});
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
  const auto answers = [&](int32_t num_ranks) {
    RigOptions options = options_of(load, num_ranks);
    options.config.load_format = "dummy";
    ModelRig rig(options);
    return run(rig, load);
  };
  const Outcome alone = answers(1);
  expect_close(alone, answers(2));
  expect_close(alone, answers(4));
}

// Weights that were dropped are read again, by each rank its part.
TEST(TensorParallel, SleepDropsAndRestoresEveryRanksPart) {
  const Workload load = tiny("qwen2", 8);
  ModelRig rig(options_of(load, 2));
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
  RigOptions options = options_of(tiny("qwen2", 1), 4);
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
