// SPDX-License-Identifier: Apache-2.0
// Stages that divide the layers of a model give the answers of one stage, bit for bit, under every sampling rule and
// configuration. The ranks are threads of this process, and most messages between stages are larger than a slot of
// their memory.
#include "files/model_files.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <algorithm>
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

struct Sizes {
  int32_t tensor = 1;
  int32_t pipeline = 1;
};

Workload tiny(const std::string& model, int32_t num_requests) {
  return {test::source_path("tests/golden/tiny/") + model, "float32", 128, num_requests, 100, 24};
}

RigOptions options_of(const Workload& load, const Sizes& sizes) {
  RigOptions options = base_options(load);
  options.config.tensor_parallel_size = sizes.tensor;
  options.config.pipeline_parallel_size = sizes.pipeline;
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

void expect_same(const Outcome& expected, const Outcome& other) {
  test::expect_same(expected.answers, other.answers);
  for (const auto& [id, result] : expected.results) {
    const RigResult& mine = other.results.at(id);
    EXPECT_EQ(result.reason, mine.reason) << id;
    EXPECT_EQ(result.prompt_top, mine.prompt_top) << id;
    EXPECT_EQ(result.hidden, mine.hidden) << id;
  }
}

struct Axis {
  std::string name;
  std::function<void(RigOptions&)> set;
  std::function<bool(ModelRig&)> was_active;
};

// As many steps run at once as there are stages, and one more waits.
Axis plain(const Sizes& sizes) {
  return {"plain",
          [](RigOptions&) {},
          [sizes](ModelRig& rig) {
            return rig.scheduler().stats().max_steps_in_flight == sizes.pipeline + 1;
          }};
}

// Drafts that are right and wrong in turn. The last stage proposes them, and the first takes them in.
Axis drafts(const KnownDrafts& known, int32_t num_drafts) {
  return {"drafts",
          [&known, num_drafts](RigOptions& o) {
            o.runner.max_drafts = num_drafts;
            o.runner.features.extra = {known.factory()};
          },
          [](ModelRig& rig) {
            const SchedulerStats stats = rig.scheduler().stats();
            return stats.num_accepted_tokens > 0 &&
                   stats.num_accepted_tokens < stats.num_drafted_tokens;
          }};
}

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
          [mode](RigOptions& o) {
            o.config.cudagraph_mode = mode;
            o.config.cudagraph_capture_sizes = "6,24,128";
          },
          [](ModelRig& rig) {
            const ExecutorStats stats = rig.executor().stats();
            return stats.graphs_full + stats.graphs_piecewise > 10 && stats.padded_toks > 0;
          }};
}

Axis sync_with_late_masks(const Sizes& sizes) {
  return {"sync_with_late_masks",
          [](RigOptions& o) {
            o.config.async_scheduling = false;
            o.config.grammar_mask_delay_us = 15'000;
          },
          [sizes](ModelRig& rig) {
            return rig.num_withheld() > 0 &&
                   rig.executor().stats().max_steps_in_flight == sizes.pipeline;
          }};
}

Axis late_masks() {
  return {"late_masks",
          [](RigOptions& o) { o.config.grammar_mask_delay_us = 15'000; },
          [](ModelRig& rig) { return rig.num_withheld() > 0; }};
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

// Runs the workload with the sizes under each axis. The answers are those of one stage with as many ranks.
void expect_stages_change_nothing(const Workload& load,
                                  const Sizes& sizes,
                                  const std::vector<Axis>& axes) {
  SCOPED_TRACE(::testing::Message() << sizes.tensor << " x " << sizes.pipeline << " ranks");
  ModelRig one_stage(options_of(load, {sizes.tensor, 1}));
  const Outcome expected = run(one_stage, load);
  for (const Axis& axis : axes) {
    SCOPED_TRACE(axis.name);
    RigOptions options = options_of(load, sizes);
    axis.set(options);
    ModelRig rig(options);
    expect_same(expected, run(rig, load));
    EXPECT_TRUE(axis.was_active(rig)) << "the axis had no effect";
  }
}

KnownDrafts known_drafts(const Workload& load) {
  ModelRig alone(options_of(load, {}));
  const Outcome expected = run(alone, load);
  KnownDrafts known(DraftKind::kMixed, 7);
  for (const Request& request : make_requests(load)) {
    known.expect(request, expected.answers.at(request.id).tokens);
  }
  return known;
}

TEST(Pipeline, TwoStages) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  const Sizes sizes{1, 2};
  expect_stages_change_nothing(load,
                               sizes,
                               {plain(sizes),
                                drafts(known, 3),
                                chunks_and_few_blocks(10),
                                sync_with_late_masks(sizes),
                                late_masks(),
                                graphs("full"),
                                graphs("piecewise"),
                                deferred_and_serialised()});
}

// Full attention and a window in two KV groups: with a layer each, stages have layers of one of them.
TEST(Pipeline, FourStages) {
  const Workload load = tiny("qwen3_two_groups", 16);
  const KnownDrafts known = known_drafts(load);
  const Sizes sizes{1, 4};
  expect_stages_change_nothing(load,
                               sizes,
                               {plain(sizes),
                                drafts(known, 2),
                                chunks_and_few_blocks(16),
                                sync_with_late_masks(sizes),
                                deferred_and_serialised()});
}

TEST(Pipeline, TwoStagesOfTwoRanks) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  const Sizes sizes{2, 2};
  expect_stages_change_nothing(
      load,
      sizes,
      {plain(sizes), drafts(known, 2), chunks_and_few_blocks(10), late_masks(), graphs("full")});
}

TEST(Pipeline, TwoStagesOfFourRanks) {
  const Workload load = tiny("qwen2", 16);
  const Sizes sizes{4, 2};
  expect_stages_change_nothing(load, sizes, {plain(sizes), chunks_and_few_blocks(10)});
}

// A step of a stage that is neither the first nor the last: results and a residual stream come, a residual stream goes.
TEST(Pipeline, OperationsOfAStep) {
  RigOptions options = options_of(tiny("qwen3_two_groups", 1), {1, 4});
  options.config.async_scheduling = false;
  ModelRig rig(options);
  Request request;
  request.id = 1;
  request.prompt = {5, 6, 7};
  request.max_tokens = 20;
  rig.add(request);
  while (rig.scheduler().stats().num_steps < 4) {
    ASSERT_TRUE(rig.tick());
  }
  std::vector<CommCounts> before;
  before.reserve(4);
  for (int32_t stage = 0; stage < 4; ++stage) {
    before.push_back(rig.ranks().stage_counts(stage));
  }
  const int64_t steps = rig.scheduler().stats().num_steps;
  while (rig.scheduler().stats().num_steps < steps + 1) {
    ASSERT_TRUE(rig.tick());
  }
  const auto of_stage = [&](int32_t stage) {
    return rig.ranks().stage_counts(stage) - before[static_cast<size_t>(stage)];
  };
  EXPECT_EQ(of_stage(0), (CommCounts{.sends = 1, .receives = 1}));
  EXPECT_EQ(of_stage(1), (CommCounts{.sends = 1, .receives = 2}));
  EXPECT_EQ(of_stage(2), (CommCounts{.sends = 1, .receives = 2}));
  EXPECT_EQ(of_stage(3), (CommCounts{.sends = 3, .receives = 1}));
}

// Weights that were dropped are read again, by each stage its part. The last step's results, larger than a slot, are
// read only after the sleep.
TEST(Pipeline, SleepDropsAndRestoresEveryStagesPart) {
  const Workload load = tiny("qwen2", 16);
  ModelRig rig(options_of(load, {1, 2}));
  const auto answer = [&] {
    std::vector<std::vector<TokenId>> tokens;
    for (uint64_t id = 1; id <= 8; ++id) {
      Request request;
      request.id = id;
      request.prompt = {static_cast<TokenId>(id), 6, 7};
      request.max_tokens = 9;
      rig.add(request);
    }
    for (const auto& [id, result] : rig.run()) {
      tokens.push_back(result.tokens);
    }
    return tokens;
  };
  const auto before = answer();
  for (const int level : {1, 2}) {
    rig.executor().call(SleepRanks{level}).get();
    rig.executor().call(WakeRanks{}).get();
    rig.scheduler().reset_prefix_cache();
    EXPECT_EQ(answer(), before) << level;
  }
}

// Rows are given out again while results of their last request are on the way. Those of rejected drafts would set the
// next request back.
TEST(Pipeline, AbortsDoNotReachTheNextRequestOfTheRow) {
  const Workload load = tiny("qwen3_two_groups", 0);
  const auto request_of = [](uint64_t id) {
    Request request;
    request.id = id;
    request.prompt.assign(1 + id % 9, static_cast<TokenId>(3 + id));
    request.max_tokens = 12;
    return request;
  };
  const auto is_aborted = [](uint64_t id) { return id % 3 == 1; };
  ModelRig alone(options_of(load, {}));
  for (uint64_t id = 1; id <= 60; ++id) {
    alone.add(request_of(id));
  }
  alone.run();
  KnownDrafts known(DraftKind::kMixed, 7);
  for (uint64_t id = 1; id <= 60; ++id) {
    known.expect(request_of(id), alone.results().at(id).tokens);
  }
  RigOptions options = options_of(load, {1, 4});
  options.config.max_num_seqs = 5;
  options.runner.max_drafts = 2;
  options.runner.features.extra = {known.factory()};
  ModelRig rig(options);
  int32_t num_reused = 0;
  for (uint64_t id = 1; id <= 60; ++id) {
    rig.add(request_of(id));
    for (uint64_t tick = 0; tick < 3 + id % 4; ++tick) {
      rig.tick();
      const SchedulerOutput& step = rig.step();
      for (const NewRow& row : step.new_rows) {
        num_reused += std::ranges::count(step.finished_rows, row.row) > 0 ? 1 : 0;
      }
    }
    if (is_aborted(id)) {
      rig.scheduler().abort_request(id);
    }
  }
  rig.run();
  EXPECT_GT(num_reused, 5);
  for (uint64_t id = 1; id <= 60; ++id) {
    if (!is_aborted(id)) {
      EXPECT_EQ(rig.results().at(id).tokens, alone.results().at(id).tokens) << id;
    }
  }
}

TEST(Pipeline, SmolLm2OverThreeStages) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  const Workload load{"smollm2", "float32", 49152, 8, 90, 12};
  const Sizes sizes{1, 3};
  expect_stages_change_nothing(load, sizes, {plain(sizes)});
}

}  // namespace
}  // namespace warprow
