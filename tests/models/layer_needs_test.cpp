// SPDX-License-Identifier: Apache-2.0
#include "models/layer_needs.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

DecoderSpec four_layers() {
  DecoderSpec spec;
  spec.num_layers = 4;
  LayerSpec layer;
  layer.attention = plain_attention(4, 2, 16);
  set_uniform_layers(spec, layer);
  spec.layers[1].attention.window = spec.layers[2].attention.window = 32;
  return spec;
}

TEST(LayerNeeds, ComeFromTheSpecAndTheOptions) {
  const std::vector<std::string> backends = {"native", "auto", "flashinfer", "native"};
  const std::vector<KvNeed> needs = kv_needs(four_layers(), {DType::kF32, 32, 16, {}}, backends);
  ASSERT_EQ(needs.size(), 4U);
  KvNeed full;
  full.num_heads = 4;
  full.num_kv_heads = 2;
  full.head_dim_k = full.head_dim_v = 16;
  full.dtype = DType::kF32;
  full.block_size = 32;
  full.kernel_block_size = 16;
  full.backend = "native";
  EXPECT_EQ(needs[0], full);
  EXPECT_EQ(needs[3], full);
  KvNeed window = full;
  window.kind = KvKind::kSlidingWindow;
  window.window = 32;
  window.backend = "flashinfer";
  EXPECT_EQ(needs[2], window);
  EXPECT_EQ(kv_needs(four_layers(), {})[2].backend, "auto");
}

TEST(LayerNeeds, EveryLayerOfAGroupStatesItsAttention) {
  const DecoderSpec spec = four_layers();
  const KvPlan plan = value_or_throw(plan_kv(spec, {}));
  AttentionNeed common;
  common.batch_invariant = true;
  common.max_num_rows = 7;
  std::vector<AttentionSpec> layers;
  for (const LayerSpec& layer : spec.layers) {
    layers.push_back(layer.attention);
  }
  layers[2].soft_cap = 30.0F;
  const std::vector<AttentionNeed> needs = attention_needs(layers, plan, 1, common);
  ASSERT_EQ(needs.size(), 2U);
  EXPECT_EQ(needs[0].layer, 1);
  EXPECT_EQ(needs[1].layer, 2);
  EXPECT_EQ(needs[1].kv, plan.groups[1]);
  EXPECT_EQ(needs[1].kv.window, 32);
  EXPECT_EQ(needs[1].num_heads, 4);
  EXPECT_EQ(needs[1].max_num_rows, 7);
  EXPECT_TRUE(needs[1].batch_invariant);
  EXPECT_FALSE(needs[0].soft_cap);
  EXPECT_TRUE(needs[1].soft_cap);
}

}  // namespace
}  // namespace warprow
