// SPDX-License-Identifier: Apache-2.0
#include "models/layer_needs.h"

#include <span>
#include <string>
#include <utility>
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

TEST(LayerNeeds, LayersOfAnEncoderShareOnePlaceAndTakeAHeadSizeThatKernelsHave) {
  DecoderSpec spec = four_layers();
  spec.encoder.emplace();
  for (LayerSpec& layer : spec.layers) {
    layer.attention.causal = false;
  }
  constexpr int32_t kSizes[] = {128, 24, 8};
  KvOptions options;
  for (const auto& [sizes, head_dim] :
       {std::pair{std::span<const int32_t>(kSizes), 24},
        std::pair{std::span<const int32_t>(kSizes).last(1), 16},  // none holds it
        std::pair{std::span<const int32_t>(), 16}}) {
    options.encoder_head_dims = sizes;
    const KvPlan plan = value_or_throw(plan_kv(spec, options));
    ASSERT_EQ(plan.groups.size(), 1U);
    EXPECT_EQ(plan.groups[0].num_layers, 1);
    EXPECT_EQ(plan.groups[0].head_dim_k, head_dim);
    EXPECT_EQ(plan.groups[0].head_dim_v, head_dim);
    EXPECT_EQ(plan.groups[0].window, 0);  // to both sides: nothing falls out of it
    ASSERT_EQ(plan.layers.size(), 4U);
    EXPECT_EQ(plan.layers[3].group, 0);
  }
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
