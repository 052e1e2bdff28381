// SPDX-License-Identifier: Apache-2.0
// A tiny Gemma 3 text model with random weights, from config.json to logits, against an oracle in doubles. It has a
// rope per kind of layer, sliding windows, head norms, norms before and after each block stored as weight - 1, tanh
// GELU and scaled embeddings.
#include "models/registry.h"
#include "tests/support/decoder_oracle.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using test::Doubles;
using test::ModelRig;
using test::RigOptions;
using test::RigResult;
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

// The same config as transformers 5 writes it.
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

std::vector<TokenId> prompt_of(int len, int seed) {
  std::vector<TokenId> ids;
  for (int i = 0; i < len; ++i) {
    ids.push_back(3 + (i * i * 7 + i * seed) % 90);
  }
  return ids;
}

// The top tokens, best first, against the oracle's logits.
void expect_top(const RigResult::Top& top, const Doubles& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  ASSERT_EQ(top.size(), 20U);
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(top[i].first), order[i]) << i;
    EXPECT_NEAR(top[i].second - top[0].second, logits[order[i]] - logits[order[0]], 1e-4) << i;
  }
}

class Gemma3 : public testing::TestWithParam<bool> {};

TEST_P(Gemma3, EqualsTheOracle) {
  test::OracleModel model = oracle_model();
  test::RandomCheckpoint checkpoint(model, 7, 1.0);
  checkpoint.add_ends(true);
  for (int i = 0; i < kLayers; ++i) {
    checkpoint.add_layer(i, {.qk = true, .post = true, .ffn = "pre_feedforward_layernorm"});
  }
  const TempDir dir;
  dir.write("config.json", (GetParam() ? nested_config() : config()).dump());
  dir.write("model.safetensors", checkpoint.bytes());
  RigOptions options;
  options.config.model = dir.path().string();
  options.config.dtype = "float32";
  options.config.max_num_batched_tokens = 16;  // prompts are prefilled in chunks
  options.config.max_num_seqs = 4;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.config.threads = 1;
  ModelRig rig(options);
  const std::vector<std::vector<TokenId>> prompts = {
      prompt_of(1, 3), prompt_of(9, 5), prompt_of(45, 11)};
  for (size_t i = 0; i < prompts.size(); ++i) {
    Request request;
    request.id = i + 1;
    request.prompt = prompts[i];
    request.max_tokens = 10;
    request.params.num_logprobs = 20;
    rig.add(request);
  }
  const auto& results = rig.run();
  const test::DecoderOracle oracle(model);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const RigResult& result = results.at(i + 1);
    ASSERT_EQ(result.tokens.size(), 10U);
    std::vector<TokenId> ids = prompts[i];
    ids.insert(ids.end(), result.tokens.begin(), result.tokens.end());
    const std::vector<Doubles> logits = oracle.logits({ids.begin(), ids.end()});
    for (size_t step = 0; step < result.tokens.size(); ++step) {
      SCOPED_TRACE(testing::Message() << "prompt " << prompts[i].size() << " step " << step);
      expect_top(result.top[step], logits[prompts[i].size() - 1 + step]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Configs, Gemma3, testing::Bool(), [](const auto& nested) {
  return nested.param ? "OfTransformers5" : "Older";
});

// A feature of the family that the forward lacks is refused and never ignored.
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
