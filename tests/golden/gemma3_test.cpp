// SPDX-License-Identifier: Apache-2.0
// A tiny Gemma 3 text model with random weights, from config.json to logits, against an oracle in doubles. It has a
// rope per kind of layer, sliding windows, head norms, norms before and after each block stored as weight - 1, tanh
// GELU and scaled embeddings.
#include "models/registry.h"
#include "tests/support/oracle_check.h"

#include <cmath>
#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using test::TempDir;

constexpr int kLayers = 4;
constexpr int kWindow = 12;

bool is_global(int layer) { return layer % 2 == 1; }

json config() {
  return {{"architectures", {"Gemma3ForCausalLM"}},
          {"num_hidden_layers", kLayers},
          {"hidden_size", 96},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"intermediate_size", 72},
          {"vocab_size", 96},
          {"max_position_embeddings", 256},
          {"rms_norm_eps", 1e-6},
          {"hidden_activation", "gelu_pytorch_tanh"},
          {"query_pre_attn_scalar", 24},
          {"sliding_window", kWindow},
          {"sliding_window_pattern", 2},
          {"rope_theta", 1000.0},
          {"rope_local_base_freq", 50.0},
          {"rope_scaling", {{"rope_type", "linear"}, {"factor", 4.0}}},
          {"attn_logit_softcapping", nullptr},
          {"final_logit_softcapping", nullptr}};
}

// The same as transformers 5 writes it.
json nested_config() {
  json out = config();
  for (const char* key :
       {"rope_theta", "rope_local_base_freq", "rope_scaling", "sliding_window_pattern"}) {
    out.erase(key);
  }
  out["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 4.0}, {"rope_theta", 1000.0}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 50.0}}}};
  out["layer_types"] = {
      "sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  return out;
}

test::OracleModel oracle_model() {
  test::OracleModel model;
  model.hidden = 96;
  model.vocab = 96;
  model.eps = 1e-6;
  model.embed_scale = std::sqrt(96.0);
  for (int i = 0; i < kLayers; ++i) {
    test::OracleLayer layer;
    layer.num_heads = 4;
    layer.num_kv_heads = 2;
    layer.head_dim = layer.rot_dim = 16;
    layer.window = is_global(i) ? 0 : kWindow;
    layer.theta = is_global(i) ? 1000.0 : 50.0;
    layer.stretch = is_global(i) ? 4.0 : 1.0;
    layer.scale = 1.0 / std::sqrt(24.0);
    layer.intermediate = 72;
    layer.gelu = true;
    model.layers.push_back(layer);
  }
  return model;
}

class Gemma3 : public testing::TestWithParam<bool> {};

TEST_P(Gemma3, EqualsTheOracle) {
  test::OracleModel model = oracle_model();
  test::RandomCheckpoint checkpoint(model, 7, 1.0);
  checkpoint.add_ends(true);
  for (int i = 0; i < kLayers; ++i) {
    checkpoint.add_layer(i, {.qk = true, .post = true, .ffn = "pre_feedforward_layernorm"});
  }
  test::expect_equals_oracle(GetParam() ? nested_config() : config(), checkpoint.bytes(), model);
}

INSTANTIATE_TEST_SUITE_P(Configs, Gemma3, testing::Bool(), [](const auto& nested) {
  return nested.param ? "OfTransformers5" : "Older";
});

// What the family may ask for and the forward lacks is refused, never ignored.
TEST(Gemma3Config, Refusals) {
  const auto error_of = [](const json& json_config) -> std::string {
    const TempDir dir;
    dir.write("config.json", json_config.dump());
    const auto checkpoint = value_or_throw(Checkpoint::open(
        value_or_throw(resolve_model(
            dir.path().string(), CachePaths::from_environment(), WeightFiles::kNotRead)),
        WeightFiles::kNotRead));
    const auto spec = read_decoder_spec(checkpoint);
    return spec ? "" : spec.error().message;
  };
  EXPECT_EQ(error_of(config()), "");
  json bad = config();
  bad["final_logit_softcapping"] = 30.0;
  EXPECT_EQ(error_of(bad), "final_logit_softcapping is not supported");
  bad = config();
  bad["use_bidirectional_attention"] = true;
  EXPECT_EQ(error_of(bad), "use_bidirectional_attention is not supported");
  for (const char* key : {"head_dim", "query_pre_attn_scalar", "sliding_window", "rope_theta"}) {
    bad = config();
    bad.erase(key);
    EXPECT_EQ(error_of(bad), std::string("config.json: ") + key + " is missing");
  }
}

}  // namespace
}  // namespace warprow
