// SPDX-License-Identifier: Apache-2.0
// Stages that divide the layers of a model give the answers of one stage, bit for bit, under every sampling rule and
// configuration. The ranks are threads of this process, and most messages between stages are larger than a slot of
// their memory.
#include "files/model_files.h"
#include "tests/golden/divided_model.h"
#include "tests/support/invariance_load.h"
#include "tests/support/known_drafts.h"
#include "tests/support/model_rig.h"

#include <algorithm>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::Axis;
using test::chunks_and_few_blocks;
using test::CommCounts;
using test::deferred_and_serialised;
using test::DraftKind;
using test::expect_same_under;
using test::graphs;
using test::known_drafts;
using test::KnownDrafts;
using test::ModelRig;
using test::options_of;
using test::Outcome;
using test::RigOptions;
using test::run;
using test::Sizes;
using test::sync_with_late_masks;
using test::tiny;
using test::Workload;

// As many steps run at once as there are stages, and one more waits.
Axis plain(const Sizes& sizes) {
  return {"plain",
          [](RigOptions&) {},
          [sizes](ModelRig& rig) {
            return rig.scheduler().stats().max_steps_in_flight == sizes.pipeline + 1;
          }};
}

// Drafts that are right and wrong in turn. The last stage proposes them, and the first takes them in.
Axis pipeline_drafts(const KnownDrafts& known, int32_t num_drafts) {
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

Axis pipeline_late_masks() {
  return {"late_masks",
          [](RigOptions& o) { o.config.grammar_mask_delay_us = 15'000; },
          [](ModelRig& rig) { return rig.num_withheld() > 0; }};
}

// Runs the workload with the sizes under each axis. The answers are those of one stage with as many ranks.
void expect_stages_change_nothing(const Workload& load,
                                  const Sizes& sizes,
                                  const std::vector<Axis>& axes) {
  SCOPED_TRACE(::testing::Message() << sizes.tensor << " x " << sizes.pipeline << " ranks");
  ModelRig one_stage(options_of(load, {sizes.tensor, 1}));
  const Outcome expected = run(one_stage, load);
  expect_same_under(axes, load, sizes, expected);
}

TEST(Pipeline, TwoStages) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  const Sizes sizes{1, 2};
  expect_stages_change_nothing(load,
                               sizes,
                               {plain(sizes),
                                pipeline_drafts(known, 3),
                                chunks_and_few_blocks(10),
                                sync_with_late_masks(sizes),
                                pipeline_late_masks(),
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
                                pipeline_drafts(known, 2),
                                chunks_and_few_blocks(16),
                                sync_with_late_masks(sizes),
                                deferred_and_serialised()});
}

TEST(Pipeline, TwoStagesOfTwoRanks) {
  const Workload load = tiny("llama_gqa_tied/model.gguf", 24);
  const KnownDrafts known = known_drafts(load);
  const Sizes sizes{2, 2};
  expect_stages_change_nothing(load,
                               sizes,
                               {plain(sizes),
                                pipeline_drafts(known, 2),
                                chunks_and_few_blocks(10),
                                pipeline_late_masks(),
                                graphs("full")});
}

// A dense layer, then one of experts.
TEST(Pipeline, ExpertsOnTheSecondStage) {
  const Workload load = tiny("qwen3_moe", 16);
  const Sizes sizes{2, 2};
  expect_stages_change_nothing(load, sizes, {plain(sizes), graphs("full")});
}

// A window on the first stage, full attention on the second; sinks and experts on both.
TEST(Pipeline, SinksAndMxfp4) {
  const Workload load = tiny("gpt_oss_mxfp4", 16);
  const Sizes sizes{1, 2};
  expect_stages_change_nothing(load, sizes, {plain(sizes), chunks_and_few_blocks(16)});
}

// Heads of another shape in the last layer's group, and norms of the experts' own.
TEST(Pipeline, StagesOfTwoFamiliesWithExperts) {
  for (const char* model : {"glm4_moe", "gemma4_moe"}) {
    SCOPED_TRACE(model);
    const Sizes sizes{1, 2};
    expect_stages_change_nothing(
        tiny(model, 16), sizes, {plain(sizes), graphs("full"), deferred_and_serialised()});
  }
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
