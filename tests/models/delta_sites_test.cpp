// SPDX-License-Identifier: Apache-2.0
#include "models/delta_sites.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Eight query heads and two key-value heads of 16 in one layer; modules are fused or not.
DecoderSpec fused_spec(bool fused) {
  DecoderSpec spec;
  spec.num_layers = 1;
  spec.hidden_size = 96;
  LayerSpec layer;
  layer.attention = plain_attention(8, 2, 16);
  layer.ffn.intermediate_size = 160;
  set_uniform_layers(spec, layer);
  spec.names.q = "model.layers.{}.self_attn.q_proj.weight";
  spec.names.k = "model.layers.{}.self_attn.k_proj.weight";
  spec.names.v = "model.layers.{}.self_attn.v_proj.weight";
  spec.names.o = "model.layers.{}.self_attn.o_proj.weight";
  spec.names.gate = "model.layers.{}.mlp.gate_proj.weight";
  spec.names.up = "model.layers.{}.mlp.up_proj.weight";
  spec.names.down = "model.layers.{}.mlp.down_proj.weight";
  if (fused) {
    spec.names.qkv = "model.layers.{}.self_attn.qkv_proj.weight";
    spec.names.gate_up = "model.layers.{}.mlp.gate_up_proj.weight";
  }
  return spec;
}

void expect_part(const LinearSitePart& part,
                 const std::string& module,
                 int64_t module_rows,
                 int64_t first_row,
                 int64_t rows,
                 int64_t y_col) {
  EXPECT_EQ(part.module, module);
  EXPECT_EQ(part.module_rows, module_rows) << module;
  EXPECT_EQ(part.first_row, first_row) << module;
  EXPECT_EQ(part.rows, rows) << module;
  EXPECT_EQ(part.y_col, y_col) << module;
}

// Four ranks have two query heads each, and pairs of them the same key-value head.
TEST(DeltaSites, RanksDivideOutputsByHeads) {
  const DecoderSpec spec = fused_spec(false);
  const LinearSite qkv = qkv_site(spec, 0, {3, 4});
  EXPECT_EQ(qkv.k, 96);
  EXPECT_EQ(qkv.module_cols, 96);
  EXPECT_EQ(qkv.first_col, 0);
  ASSERT_EQ(qkv.parts.size(), 3U);
  expect_part(qkv.parts[0], "layers.0.self_attn.q_proj", 128, 96, 32, 0);
  expect_part(qkv.parts[1], "layers.0.self_attn.k_proj", 32, 16, 16, 32);
  expect_part(qkv.parts[2], "layers.0.self_attn.v_proj", 32, 16, 16, 48);
  EXPECT_EQ(qkv_site(spec, 0, {2, 4}).parts[1].first_row, 16);
  EXPECT_EQ(qkv_site(spec, 0, {1, 4}).parts[1].first_row, 0);
  const LinearSite gate_up = gate_up_site(spec, 0, {1, 4});
  ASSERT_EQ(gate_up.parts.size(), 2U);
  expect_part(gate_up.parts[0], "layers.0.mlp.gate_proj", 160, 40, 40, 0);
  expect_part(gate_up.parts[1], "layers.0.mlp.up_proj", 160, 40, 40, 40);
}

// A rank's rows of a fused module lie apart.
TEST(DeltaSites, RanksDivideFusedModules) {
  const DecoderSpec spec = fused_spec(true);
  const LinearSite qkv = qkv_site(spec, 0, {1, 2});
  expect_part(qkv.parts[0], "layers.0.self_attn.qkv_proj", 192, 64, 64, 0);
  expect_part(qkv.parts[1], "layers.0.self_attn.qkv_proj", 192, 144, 16, 64);
  expect_part(qkv.parts[2], "layers.0.self_attn.qkv_proj", 192, 176, 16, 80);
  const LinearSite gate_up = gate_up_site(spec, 0, {1, 2});
  expect_part(gate_up.parts[0], "layers.0.mlp.gate_up_proj", 320, 80, 80, 0);
  expect_part(gate_up.parts[1], "layers.0.mlp.gate_up_proj", 320, 240, 80, 80);
}

TEST(DeltaSites, RanksDivideInputsOfSums) {
  const DecoderSpec spec = fused_spec(false);
  const LinearSite output = output_site(spec, 0, {2, 4});
  EXPECT_EQ(output.k, 32);
  EXPECT_EQ(output.module_cols, 128);
  EXPECT_EQ(output.first_col, 64);
  expect_part(output.parts.at(0), "layers.0.self_attn.o_proj", 96, 0, 96, 0);
  const LinearSite down = down_site(spec, 0, {1, 4});
  EXPECT_EQ(down.k, 40);
  EXPECT_EQ(down.module_cols, 160);
  EXPECT_EQ(down.first_col, 40);
}

TEST(DeltaSites, ALayersModules) {
  EXPECT_EQ(site_modules(fused_spec(true), 0),
            (std::vector<std::string>{"layers.0.self_attn.qkv_proj",
                                      "layers.0.self_attn.qkv_proj",
                                      "layers.0.self_attn.qkv_proj",
                                      "layers.0.self_attn.o_proj",
                                      "layers.0.mlp.gate_up_proj",
                                      "layers.0.mlp.gate_up_proj",
                                      "layers.0.mlp.down_proj"}));
  DecoderSpec experts = fused_spec(false);
  experts.layers[0].ffn.num_experts = 4;
  EXPECT_EQ(site_modules(experts, 0).size(), 4U) << "attention alone";
}

}  // namespace
}  // namespace warprow
