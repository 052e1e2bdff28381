// SPDX-License-Identifier: Apache-2.0
#include "worker/deep_prefill.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

// The shape of Qwen3 8B, planned for a GPU with 132 SMs.
ModelPlan large_plan() {
  ModelPlan plan;
  plan.spec.num_layers = 36;
  plan.spec.hidden_size = 4096;
  set_uniform_layers(plan.spec,
                     {.attention = plain_attention(32, 8, 128), .delta = {}, .ffn = {12288}});
  plan.config.max_num_batched_tokens = 8192;
  plan.device.kind = DeviceKind::kCuda;
  plan.device.num_sms = 132;
  return plan;
}

// Multiply-adds, counted as two: 2 x 4096 x (6144 + 4096 + 3 x 12288) per token and layer, 2 x 2 x 4096 per query-key
// pair and layer.
TEST(DeepPrefill, TakesAsLongAsTheMatricesOfAFullStep) {
  const DeepPrefill deep = deep_prefill(large_plan());
  EXPECT_EQ(deep.max_pairs, int64_t{8192} * 2 * 47104 / 4);
  EXPECT_EQ(deep.min_chunk, 4 * 128) << "128 tiles for 132 SMs";
}

TEST(DeepPrefill, OrAQuarterOfASecondOnASmallModel) {
  ModelPlan plan = large_plan();
  plan.config.max_num_batched_tokens = 512;
  EXPECT_EQ(deep_prefill(plan).max_pairs, int64_t{132} * 800'000'000'000 / (36 * 4 * 4096));
}

TEST(DeepPrefill, ACpuHasNoTileToFill) {
  ModelPlan plan = large_plan();
  plan.config.max_num_batched_tokens = 512;
  plan.device = {};
  const DeepPrefill deep = deep_prefill(plan);
  EXPECT_EQ(deep.max_pairs, int64_t{512} * 2 * 47104 / 4);
  EXPECT_EQ(deep.min_chunk, 128);
}

TEST(DeepPrefill, WindowsAreNeverDeep) {
  ModelPlan plan = large_plan();
  for (size_t l = 1; l < plan.spec.layers.size(); ++l) {
    plan.spec.layers[l].attention.window = 1024;
  }
  EXPECT_EQ(deep_prefill(plan).max_pairs, int64_t{36} * 8192 * 2 * 47104 / 4);
  plan.spec.layers[0].attention.window = 1024;
  EXPECT_EQ(deep_prefill(plan).max_pairs, 0);
}

}  // namespace
}  // namespace warprow
