// SPDX-License-Identifier: Apache-2.0
// An 8-bit KV cache against an oracle in doubles that rounds keys and values in the same way; scales that are calculated
// at start; what the plan says of it.
#include "tests/support/decoder_oracle.h"
#include "tests/support/float8.h"
#include "tests/support/invariance_load.h"
#include "tests/support/model_rig.h"
#include "tests/support/needle_model.h"
#include "tests/support/oracle_check.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/sanitizers.h"
#include "tests/support/source_path.h"

#include <cmath>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr int kNumLayers = 2;

test::OracleModel f8_oracle() {
  test::OracleLayer layer;
  layer.num_heads = 4;
  layer.num_kv_heads = 2;
  layer.head_dim = layer.rot_dim = 16;
  layer.theta = 10000.0;
  layer.scale = 0.25;
  layer.intermediate = 48;
  test::OracleModel model;
  model.hidden = 48;
  model.vocab = 96;
  model.eps = 1e-5;
  model.layers.assign(kNumLayers, layer);
  return model;
}

nlohmann::json llama_config() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_act", "silu"},
          {"hidden_size", 48},
          {"intermediate_size", 48},
          {"num_hidden_layers", kNumLayers},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", 96},
          {"max_position_embeddings", 128},
          {"rms_norm_eps", 1e-5},
          {"rope_theta", 10000.0},
          {"tie_word_embeddings", false}};
}

// Scales for a head or, with one element, for all.
using Scales = std::vector<float>;

void cache_rounds(test::OracleLayer& layer, DType type, const Scales& keys, const Scales& values) {
  const auto rounding = [type](const Scales& scales) {
    return [type, scales](double x, int head) {
      const auto scale =
          static_cast<double>(scales[scales.size() == 1 ? 0 : static_cast<size_t>(head)]);
      const uint8_t bits = testing::f8_bits(type, static_cast<float>(x / scale));
      return static_cast<double>(testing::f8_value(type, bits)) * scale;
    };
  };
  layer.cached_key = rounding(keys);
  layer.cached_value = rounding(values);
}

class EightBitKvCache : public ::testing::TestWithParam<DType> {};
INSTANTIATE_TEST_SUITE_P(Types,
                         EightBitKvCache,
                         ::testing::Values(DType::kF8E4M3, DType::kF8E5M2),
                         [](const auto& type) { return std::string(dtype_name(type.param)); });

TEST_P(EightBitKvCache, EqualsTheOracleWithScalesOfTheCheckpoint) {
  test::OracleModel model = f8_oracle();
  test::RandomCheckpoint tensors(model, 17);
  tensors.add_ends(false);
  const Scales whole[2] = {{0.02F}, {0.011F}};
  const Scales by_head[2] = {{0.03F, 0.005F}, {0.25F, 0.0625F}};
  for (int i = 0; i < kNumLayers; ++i) {
    tensors.add_layer(i, {});
    const Scales* scales = i == 0 ? whole : by_head;
    const std::string at = "model.layers." + std::to_string(i) + ".self_attn.";
    const auto shape = std::vector<int64_t>{static_cast<int64_t>(scales[0].size())};
    // ModelOpt's names, then those of compressed-tensors.
    tensors.add(at + (i == 0 ? "k_proj.k_scale" : "k_scale"), shape, scales[0]);
    tensors.add(at + (i == 0 ? "v_proj.v_scale" : "v_scale"), shape, scales[1]);
    cache_rounds(model.layers[static_cast<size_t>(i)], GetParam(), scales[0], scales[1]);
  }
  test::expect_equals_oracle(llama_config(), tensors.bytes(), model, "cpu", dtype_name(GetParam()));
}

TEST_P(EightBitKvCache, WithoutScalesTheyAreOne) {
  test::OracleModel model = f8_oracle();
  test::RandomCheckpoint tensors(model, 18);
  tensors.add_ends(false);
  for (int i = 0; i < kNumLayers; ++i) {
    tensors.add_layer(i, {});
    cache_rounds(model.layers[static_cast<size_t>(i)], GetParam(), {1.0F}, {1.0F});
  }
  test::expect_equals_oracle(llama_config(), tensors.bytes(), model, "cpu", dtype_name(GetParam()));
}

// 32,000 tokens; fewer where a sanitizer makes them take minutes.
TEST(EightBitKvCacheNeedle, IsFound) {
  constexpr int32_t num_toks = WR_ASAN != 0 || WR_TSAN != 0 ? 3000 : 32000;
  const test::NeedleModel model(16);
  for (const auto& [dtype, error] :
       {std::pair{"auto", 0x1p-9}, std::pair{"fp8_e4m3", 0x1p-4}, std::pair{"fp8_e5m2", 0x1p-3}}) {
    SCOPED_TRACE(dtype);
    test::RigOptions options;
    options.config.kv_cache_dtype = dtype;
    options.config.threads = options.device.num_threads = 2;
    test::NeedleModel::expect_found(model.ask(num_toks, options), num_toks, error);
  }
}

// The same by rows with drafts, whose queries read the cache in one step.
TEST(EightBitKvCacheNeedle, IsFoundByRowsWithDrafts) {
  constexpr int32_t num_toks = WR_ASAN != 0 || WR_TSAN != 0 ? 3000 : 32000;
  const test::NeedleModel model(16);
  for (const auto& [dtype, error] : {std::pair{"auto", 0x1p-9}, std::pair{"fp8_e4m3", 0x1p-4}}) {
    SCOPED_TRACE(dtype);
    test::RigOptions options;
    options.config.kv_cache_dtype = dtype;
    options.config.threads = options.device.num_threads = 2;
    options.config.speculative_config = test::ngram_config(4);
    test::NeedleModel::expect_found(model.ask(num_toks, options, 12), num_toks, error);
  }
}

test::Workload tiny_load() {
  return {test::source_path("tests/golden/tiny/qwen3_two_groups"), "bfloat16", 128, 8, 60, 12};
}

test::Answers answers_with(const test::Workload& load,
                           const std::function<void(test::RigOptions&)>& set,
                           const std::function<void(test::ModelRig&)>& before = {}) {
  test::RigOptions options = test::base_options(load);
  set(options);
  test::ModelRig rig(options);
  if (before) {
    before(rig);
  }
  const std::vector<Request> requests = test::make_requests(load);
  for (const Request& request : requests) {
    test::add_request(rig, request, &test::grammar_of(load));
  }
  return test::answers_of(requests, rig.run());
}

bool same_tokens(const test::Answers& a, const test::Answers& b) {
  for (const auto& [id, answer] : a) {
    if (answer.tokens != b.at(id).tokens || answer.logprobs != b.at(id).logprobs) {
      return false;
    }
  }
  return true;
}

TEST(CalculatedKvScales, AreFixedBeforeTheFirstRequest) {
  const test::Workload load = tiny_load();
  const auto calculated = [](test::RigOptions& o) {
    o.config.kv_cache_dtype = "fp8";
    o.config.calculate_kv_scales = true;
  };
  const test::Answers expected = answers_with(load, calculated);
  test::expect_same(expected, answers_with(load, [&](test::RigOptions& o) {
                      calculated(o);
                      o.config.cudagraph_mode = "full";
                      o.config.enable_prefix_caching = true;
                      o.config.max_num_seqs = 3;
                    }));
  // They stay through a sleep in which the weights are dropped and read again.
  test::expect_same(expected, answers_with(load, calculated, [](test::ModelRig& rig) {
                      (void)rig.call("sleep", "2");
                      (void)rig.call("wake_up", "");
                    }));
  EXPECT_FALSE(same_tokens(
      expected, answers_with(load, [](test::RigOptions& o) { o.config.kv_cache_dtype = "fp8"; })))
      << "scales of 1 give the same: nothing was calculated";
}

TEST(EightBitKvCachePlan, HalvesABlock) {
  EngineConfig config = test::base_options(tiny_load()).config;
  const ModelPlan plain = value_or_throw(plan_model(config, this_machine()));
  config.kv_cache_dtype = "fp8";
  const ModelPlan small = value_or_throw(plan_model(config, this_machine()));
  EXPECT_EQ(2 * small.kv_cache.block_bytes(), plain.kv_cache.block_bytes());
  EXPECT_EQ(small.memory.kv_dtype, "fp8_e4m3");
  EXPECT_EQ(plain.memory.kv_dtype, "bfloat16");
  EXPECT_EQ(small.memory.kv_layers_unscaled, plain.spec.num_layers);
  config.calculate_kv_scales = true;
  EXPECT_EQ(value_or_throw(plan_model(config, this_machine())).memory.kv_scales, "calculated");
}

TEST(EightBitKvCachePlan, RefusesWhatCannotBeCombined) {
  EngineConfig config = test::base_options(tiny_load()).config;
  config.calculate_kv_scales = true;
  const auto without = plan_model(config, this_machine());
  ASSERT_FALSE(without);
  EXPECT_NE(without.error().message.find("--calculate-kv-scales"), std::string::npos);
  config.calculate_kv_scales = false;
  config.kv_cache_dtype = "fp8";
  config.model = test::source_path("tests/golden/tiny/embed_bert");
  config.max_model_len = 0;
  const auto encoder = plan_model(config, this_machine());
  ASSERT_FALSE(encoder);
  EXPECT_EQ(encoder.error().message, "--kv-cache-dtype: fp8_e4m3 with an encoder is not supported");
}

}  // namespace
}  // namespace warprow
