// SPDX-License-Identifier: Apache-2.0
#include "kv/kv_planner.h"

#include "kv/kv_math.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Needs = std::vector<KvNeed>;

KvNeed need_of(int32_t num_kv_heads, int32_t head_dim, int32_t window = 0) {
  KvNeed need;
  need.kind = window > 0 ? KvKind::kSlidingWindow : KvKind::kFull;
  need.num_heads = 4 * num_kv_heads;
  need.num_kv_heads = num_kv_heads;
  need.head_dim_k = need.head_dim_v = head_dim;
  need.window = window;
  return need;
}

// `num_layers` layers that repeat `pattern`.
Needs repeat(const Needs& pattern, size_t num_layers) {
  Needs needs;
  for (size_t l = 0; l < num_layers; ++l) {
    needs.push_back(pattern[l % pattern.size()]);
  }
  return needs;
}

KvPlan plan_of(const std::vector<Needs>& models, const KvLayout& layout = {}) {
  return value_or_throw(plan_kv(models, layout));
}

// "full 28 x 8x128 bfloat16 16/16 auto": kind, places, heads, dtype, block over kernel block, backend.
std::vector<std::string> describe(const KvPlan& plan) {
  std::vector<std::string> lines;
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const KvGroupSpec& group = plan.groups[g];
    lines.push_back((group.window > 0 ? "window " + std::to_string(group.window) : "full") + " " +
                    std::to_string(group.num_layers) + " x " + std::to_string(group.num_kv_heads) +
                    "x" + std::to_string(group.head_dim_k) + " " +
                    std::string(dtype_name(group.dtype)) + " " + std::to_string(group.block_size) +
                    "/" + std::to_string(group.kernel_block_size) + " " + plan.backends[g]);
  }
  return lines;
}

// "0.0 0.1 1.0": group and index within the group of each layer.
std::string places(const KvPlan& plan) {
  std::string text;
  for (const LayerKvPlace& place : plan.layers) {
    text +=
        (text.empty() ? "" : " ") + std::to_string(place.group) + "." + std::to_string(place.index);
  }
  return text;
}

int64_t block_bytes(const KvPlan& plan) { return KvCacheSpec{plan.groups, 0}.block_bytes(); }

using ::testing::ElementsAre;

TEST(KvPlanner, ModelsOfOneKindOfLayerHaveOneGroup) {
  const KvPlan smollm2 = plan_of({repeat({need_of(3, 64)}, 30)});
  EXPECT_THAT(describe(smollm2), ElementsAre("full 30 x 3x64 bfloat16 16/16 auto"));
  EXPECT_EQ(block_bytes(smollm2), 368'640);
  const KvPlan qwen3 = plan_of({repeat({need_of(8, 128)}, 28)});
  EXPECT_THAT(describe(qwen3), ElementsAre("full 28 x 8x128 bfloat16 16/16 auto"));
  EXPECT_EQ(block_bytes(qwen3), 1'835'008);
  EXPECT_EQ(qwen3.layers[27], (LayerKvPlace{0, 27}));
  EXPECT_THAT(qwen3.num_heads, ElementsAre(32));
  const KvPlan mistral = plan_of({repeat({need_of(8, 128, 4096)}, 32)});
  EXPECT_THAT(describe(mistral), ElementsAre("window 4096 32 x 8x128 bfloat16 16/16 auto"));
}

TEST(KvPlanner, OptionsOfALayerReachItsGroup) {
  KvNeed need = need_of(2, 64);
  need.dtype = DType::kF32;
  need.block_size = 64;
  need.kernel_block_size = 16;
  need.backend = "native";
  const KvLayout layout{KvOrder::kNHD, true, true};
  const KvPlan plan = plan_of({{need, need}}, layout);
  EXPECT_THAT(describe(plan), ElementsAre("full 2 x 2x64 float32 64/16 native"));
  EXPECT_EQ(plan.groups[0].layout, layout);
}

// The tiny Qwen2 of the golden tests: two full layers, two with a window.
TEST(KvPlanner, EqualCountsAreAGroupEach) {
  const KvPlan plan =
      plan_of({{need_of(2, 16), need_of(2, 16), need_of(2, 16, 20), need_of(2, 16, 20)}});
  EXPECT_THAT(
      describe(plan),
      ElementsAre("full 2 x 2x16 bfloat16 16/16 auto", "window 20 2 x 2x16 bfloat16 16/16 auto"));
  EXPECT_EQ(places(plan), "0.0 0.1 1.0 1.1");
}

// One full layer per three sliding ones: four groups of one layer, so that a block has the same size in each.
TEST(KvPlanner, UnequalCountsAreCutToEqualGroups) {
  const KvNeed window = need_of(2, 16, 32);
  const KvPlan plan = plan_of({{need_of(2, 16), window, window, window}});
  EXPECT_THAT(describe(plan),
              ElementsAre("full 1 x 2x16 bfloat16 16/16 auto",
                          "window 32 1 x 2x16 bfloat16 16/16 auto",
                          "window 32 1 x 2x16 bfloat16 16/16 auto",
                          "window 32 1 x 2x16 bfloat16 16/16 auto"));
  EXPECT_EQ(places(plan), "0.0 1.0 2.0 3.0");
}

// gpt-oss-20b and one more full layer: 12 and 13 layers are two groups of 13, not 25 of one.
TEST(KvPlanner, NearlyEqualCountsTakeTheLarger) {
  Needs needs = repeat({need_of(8, 64, 128), need_of(8, 64)}, 24);
  needs.push_back(need_of(8, 64));
  const KvPlan plan = plan_of({needs});
  EXPECT_THAT(describe(plan),
              ElementsAre("window 128 13 x 8x64 bfloat16 16/16 auto",
                          "full 13 x 8x64 bfloat16 16/16 auto"));
}

TEST(KvPlanner, ThereAreNotTooManyGroups) {
  Needs needs = repeat({need_of(2, 16)}, 28);
  needs[0] = need_of(2, 16, 32);
  const KvPlan plan = plan_of({needs});
  ASSERT_EQ(plan.groups.size(), 6U);  // 1 and 27 layers in groups of six
  EXPECT_EQ(plan.groups[5].num_layers, 6);
  EXPECT_EQ(plan.layers[27], (LayerKvPlace{5, 2}));
}

TEST(KvPlanner, BackendsAndQueryHeadsPartLayers) {
  Needs needs = repeat({need_of(2, 16)}, 4);
  needs[1].backend = needs[2].backend = "native";
  EXPECT_EQ(places(plan_of({needs})), "0.0 1.0 1.1 0.1");
  needs[2].num_heads = 2;
  const KvPlan plan = plan_of({needs});
  EXPECT_EQ(places(plan), "0.0 2.0 3.0 1.0") << "kinds with 2, 1 and 1 layers: groups of one";
  EXPECT_THAT(plan.num_heads, ElementsAre(8, 8, 8, 2));
}

// Gemma 3 27B has 62 layers, five with a window per one without. Groups of ten would make seven groups of the 52 and 10
// layers, so groups have eleven: 6 x 11 places for 62 layers.
TEST(KvPlanner, FiveWindowsToOneFullLayer) {
  const KvNeed window = need_of(16, 128, 1024);
  const KvPlan plan =
      plan_of({repeat({window, window, window, window, window, need_of(16, 128)}, 62)});
  ASSERT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(describe(plan)[0], "window 1024 11 x 16x128 bfloat16 16/16 auto");
  EXPECT_EQ(describe(plan)[5], "full 11 x 16x128 bfloat16 16/16 auto");
  EXPECT_EQ(block_bytes(plan), 11 * 16 * 16 * 2 * 128 * 2);
}

// Gemma 4's shapes: windows with 16 heads of 256, full layers with 4 heads of 512. A token takes twice the bytes in
// window layers, so the full layers' blocks hold twice the tokens, and nothing is wasted.
TEST(KvPlanner, ACheaperTokenHasLongerBlocks) {
  const KvNeed window = need_of(16, 256, 1024);
  const KvPlan plan =
      plan_of({repeat({window, window, window, window, window, need_of(4, 512)}, 60)});
  ASSERT_EQ(plan.groups.size(), 6U);
  EXPECT_EQ(describe(plan)[0], "window 1024 10 x 16x256 bfloat16 16/16 auto");
  EXPECT_EQ(describe(plan)[5], "full 10 x 4x512 bfloat16 32/32 auto");
  for (const KvGroupSpec& group : plan.groups) {
    EXPECT_EQ(group.block_bytes(), 10 * 16 * 16 * 2 * 256 * 2);
  }
}

// The reverse: one head of 256 with windows, one of 512 without. Kernel blocks grow with their blocks.
TEST(KvPlanner, LongerBlocksHaveAsManyKernelBlocks) {
  KvNeed window = need_of(1, 256, 512);
  KvNeed full = need_of(1, 512);
  window.block_size = full.block_size = 32;
  const KvPlan plan = plan_of({repeat({window, window, window, window, full}, 35)});
  EXPECT_EQ(describe(plan)[0], "window 512 7 x 1x256 bfloat16 64/32 auto");
  EXPECT_EQ(describe(plan)[4], "full 7 x 1x512 bfloat16 32/16 auto");
  EXPECT_EQ(plan.groups[0].kernel_blocks_per_block(), plan.groups[4].kernel_blocks_per_block());
}

// A ratio of three to two: one block of the smaller kind per page, a third of the page unused. Three to one: three
// blocks. Sixteen to one: blocks are limited to 128 tokens.
TEST(KvPlanner, PagesAreWholeAndNotTooLong) {
  const KvPlan odd = plan_of({{need_of(3, 64), need_of(2, 64, 32)}});
  EXPECT_EQ(odd.groups[1].block_size, 16);
  EXPECT_EQ(block_bytes(odd), 16 * 3 * 128 * 2);
  EXPECT_EQ(odd.groups[1].layer_block_bytes(), 16 * 2 * 128 * 2);
  const KvPlan third = plan_of({{need_of(3, 64), need_of(1, 64, 32)}});
  EXPECT_EQ(third.groups[1].block_size, 48);
  const KvPlan far = plan_of({{need_of(16, 128), need_of(1, 128, 32)}});
  EXPECT_EQ(far.groups[1].block_size, 128);
  EXPECT_EQ(far.groups[1].layer_block_bytes() * 2, far.groups[0].layer_block_bytes());
}

// A draft model's layer like the target's joins the target's group. A layer of another shape gets its own group in the
// same pool.
TEST(KvPlanner, ModelsOfARankShareThePool) {
  const Needs target = repeat({need_of(8, 128)}, 4);
  const KvPlan alike = plan_of({target, {need_of(8, 128)}});
  EXPECT_THAT(describe(alike), ElementsAre("full 5 x 8x128 bfloat16 16/16 auto"));
  EXPECT_EQ(places(alike), "0.0 0.1 0.2 0.3 0.4");
  const KvPlan other = plan_of({target, {need_of(4, 64), need_of(4, 64)}});
  EXPECT_THAT(describe(other),
              ElementsAre("full 2 x 8x128 bfloat16 16/16 auto",
                          "full 2 x 8x128 bfloat16 16/16 auto",
                          "full 2 x 4x64 bfloat16 64/64 auto"));
  EXPECT_EQ(places(other), "0.0 0.1 1.0 1.1 2.0 2.1");
  EXPECT_THAT(other.first_layer, ElementsAre(0, 4));
}

std::string refusal(const std::vector<Needs>& models) {
  const auto plan = plan_kv(models, {});
  return plan ? "" : plan.error().message;
}

// One layer of attention to three with states, as in Qwen3.5: a state takes as many pages of attention as it needs. Blocks
// of attention stay as long as they were.
TEST(KvPlanner, AStateTakesPagesOfAttention) {
  KvNeed state;
  state.kind = KvKind::kState;
  state.state_bytes = 3 * need_of(4, 256).page_bytes() + 1;
  state.block_size = state.kernel_block_size = 16;
  const KvPlan plan = plan_of({{state, state, state, need_of(4, 256)}});
  ASSERT_EQ(plan.groups.size(), 4U);
  EXPECT_EQ(plan.groups[0].kind, KvKind::kState);
  EXPECT_EQ(plan.groups[0].state_pages, 4);
  EXPECT_EQ(plan.groups[3].block_size, 16);
  EXPECT_EQ(block_bytes(plan), need_of(4, 256).page_bytes());
  EXPECT_EQ(blocks_of_request(plan.groups, 33, 64), 3 + 3 * 2 * 4);
  EXPECT_EQ(refusal({{state}}),
            "KV cache: layers with states only; one layer of attention is needed");
}

TEST(KvPlanner, WhatNobodyServesIsRefusedByLayer) {
  Needs needs = repeat({need_of(2, 64)}, 3);
  needs[1].kind = KvKind::kCross;
  EXPECT_EQ(refusal({needs}),
            "KV cache of layer 1: kind cross is not supported (known: full, sliding window, "
            "state)");
  needs[1].kind = KvKind::kState;
  EXPECT_EQ(refusal({repeat({need_of(2, 64)}, 2), needs}),
            "KV cache of layer 1 of model 1: a state of no bytes");
  needs[1] = need_of(2, 64);
  needs[1].head_dim_v = 32;
  EXPECT_EQ(
      refusal({needs}),
      "KV cache of layer 1: keys of 64 and values of 32 elements a head, which must be equal");
  needs[1] = need_of(2, 64);
  needs[1].window = 8;
  EXPECT_EQ(refusal({needs}), "KV cache of layer 1: kind full with a window of 8");
  needs[1] = need_of(2, 64);
  needs[1].kernel_block_size = 12;
  EXPECT_EQ(refusal({needs}), "KV cache of layer 1: blocks of 16 tokens in kernel blocks of 12");
}

TEST(KvPlanner, ThereAreAsManyClassesAsGroupsAtMost) {
  Needs needs;
  for (int32_t window = 1; window <= 7; ++window) {
    needs.push_back(need_of(2, 64, window));
  }
  EXPECT_EQ(refusal({needs}), "layers of 7 kinds need a KV group each, and there are 6");
}

TEST(KvPlanner, AStageHasItsLayersInTheGroupsOfAll) {
  const KvPlan whole = plan_of({repeat({need_of(3, 64)}, 30)});
  const KvPlan last = stage_of(whole, 23, 30);
  EXPECT_THAT(describe(last), ElementsAre("full 7 x 3x64 bfloat16 16/16 auto"));
  EXPECT_EQ(block_bytes(last), 7 * block_bytes(whole) / 30);
  EXPECT_EQ(last.layers[22].index, kOtherStage);
  EXPECT_EQ(last.layers[23], (LayerKvPlace{0, 0}));
  EXPECT_EQ(last.layers[29], (LayerKvPlace{0, 6}));
}

// Five windows for each full attention: six groups of one place each. Layers 0 to 5 need one place in each group, layers
// 6 to 8 are dealt to the groups of windows.
TEST(KvPlanner, LayersOfAStageAreDealtEvenlyToTheGroupsOfTheirClass) {
  const Needs pattern = {need_of(2, 64, 32),
                         need_of(2, 64, 32),
                         need_of(2, 64, 32),
                         need_of(2, 64, 32),
                         need_of(2, 64, 32),
                         need_of(2, 64)};
  const KvPlan whole = plan_of({repeat(pattern, 12)});
  ASSERT_EQ(whole.groups.size(), 6U);
  ASSERT_EQ(whole.groups[0].num_layers, 2);
  const KvPlan first = stage_of(whole, 0, 6);
  const KvPlan middle = stage_of(whole, 6, 9);
  for (const KvPlan* stage : {&first, &middle}) {
    EXPECT_EQ(stage->groups.size(), 6U);
    EXPECT_EQ(stage->groups[0].num_layers, 1);
    EXPECT_EQ(stage->backends, whole.backends);
  }
  std::vector<int32_t> seen(6, 0);
  for (size_t l = 0; l < 6; ++l) {
    EXPECT_EQ(first.layers[l].index, 0);
    ++seen[static_cast<size_t>(first.layers[l].group)];
  }
  EXPECT_THAT(seen, ElementsAre(1, 1, 1, 1, 1, 1));
  EXPECT_EQ(first.layers[5].group, whole.layers[5].group) << "full attention";
}

TEST(KvMath, TokensThatThePoolHolds) {
  KvCacheSpec spec{plan_of({repeat({need_of(8, 128)}, 4)}).groups, 11};
  EXPECT_EQ(max_tokens_held(spec, 512), 160);
  spec.groups.push_back(spec.groups[0]);
  EXPECT_EQ(max_tokens_held(spec, 512), 80);
  spec.groups[1].block_size = 32;
  EXPECT_EQ(max_tokens_held(spec, 512), 96);  // 6 blocks of 16 and 3 of 32
  spec.num_blocks = 3;
  EXPECT_EQ(max_tokens_held(spec, 512), 16);
  spec.num_blocks = 2;
  EXPECT_EQ(max_tokens_held(spec, 512), 0);
}

// A window of 100 keeps 99 tokens, the step's 61 and a block for misalignment: 11 blocks.
TEST(KvMath, WindowsHoldRequestsOfAnyLength) {
  KvCacheSpec spec{plan_of({repeat({need_of(8, 128, 100)}, 4)}).groups, 12};
  EXPECT_EQ(blocks_of_request(spec.groups, 1 << 20, 61), 11);
  EXPECT_EQ(max_tokens_held(spec, 61), INT32_MAX);
  spec.num_blocks = 11;
  EXPECT_EQ(max_tokens_held(spec, 61), 160);
  // Beside full attention the window's blocks are bounded; the full group gets the other 30 - 11.
  spec = {plan_of({{need_of(8, 128), need_of(8, 128, 100)}}).groups, 31};
  ASSERT_EQ(spec.groups.size(), 2U);
  EXPECT_EQ(max_tokens_held(spec, 61), 19 * 16);
}

}  // namespace
}  // namespace warprow
