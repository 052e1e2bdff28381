// SPDX-License-Identifier: Apache-2.0
// Quantised checkpoints against their twins, whose weights are the same values in float32.
#include "tests/support/decoder_oracle.h"
#include "tests/support/model_rig.h"
#include "tests/support/quantised_model.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::ModelRig;
using test::QuantisedModel;
using test::RandomModel;
using test::RigOptions;
using test::TempDir;

RandomModel small_model(const std::string& scheme) {
  return {.family = "qwen2",
          .num_layers = 2,
          .hidden_size = 192,
          .intermediate_size = scheme.starts_with("fp8") ? 200 : 320,
          .vocab_size = 256,
          .seed = 31};
}

std::vector<TokenId> prompt_of(int32_t len) {
  std::mt19937 random(static_cast<uint32_t>(len));
  std::vector<TokenId> prompt;
  for (int32_t i = 0; i < len; ++i) {
    prompt.push_back(static_cast<TokenId>(random() % 256));
  }
  return prompt;
}

std::map<uint64_t, test::RigResult> run_quantised(const std::string& model,
                                                  const std::string& dtype,
                                                  int32_t ranks = 1,
                                                  const std::string& quantization = "none",
                                                  const std::string& fp8_activations = "auto") {
  RigOptions options;
  options.config.model = model;
  options.config.dtype = dtype;
  options.config.max_model_len = 128;
  options.config.max_num_batched_tokens = 64;
  options.config.max_num_seqs = 8;
  options.config.kv_cache_memory_bytes = 4 << 20;
  options.config.threads = 1;
  options.config.tensor_parallel_size = ranks;
  options.config.quantization = quantization;
  options.config.fp8_activations = fp8_activations;
  ModelRig rig(options);
  for (const int32_t len : {1, 9, 40}) {
    Request request;
    request.id = static_cast<uint64_t>(len);
    request.prompt = prompt_of(len);
    request.max_tokens = 12;
    request.params.num_logprobs = 5;
    rig.add(request);
  }
  return rig.run();
}

void expect_equal(const std::map<uint64_t, test::RigResult>& left,
                  const std::map<uint64_t, test::RigResult>& right,
                  float tolerance) {
  ASSERT_EQ(left.size(), right.size());
  for (const auto& [id, want] : right) {
    const test::RigResult& got = left.at(id);
    EXPECT_EQ(got.tokens, want.tokens) << id;
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t step = 0; step < want.top.size() && got.tokens == want.tokens; ++step) {
      for (size_t i = 0; i < want.top[step].size(); ++i) {
        EXPECT_NEAR(got.top[step][i].second, want.top[step][i].second, tolerance)
            << id << " " << step;
      }
    }
  }
}

class Quantised : public ::testing::TestWithParam<const char*> {};

TEST_P(Quantised, EqualsItsDequantisedTwin) {
  const TempDir quantised;
  const TempDir twin;
  for (const bool head : {false, true}) {
    SCOPED_TRACE(head ? "with its head" : "without its head");
    const QuantisedModel model{small_model(GetParam()), GetParam(), 32, head};
    const auto [of_quantised, of_twin] = model.write(quantised, twin);
    expect_equal(run_quantised(of_quantised, "float32", 1, "none", "off"),
                 run_quantised(of_twin, "float32"),
                 2e-4F);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         Quantised,
                         ::testing::Values("fp8_block",
                                           "fp8_tensor",
                                           "fp8_channel",
                                           "modelopt",
                                           "int8_channel",
                                           "int8_token",
                                           "pack4",
                                           "pack4_zeros",
                                           "pack4_order",
                                           "pack8",
                                           "awq",
                                           "gptq",
                                           "gptq_v2",
                                           "gptq_order",
                                           "gptq8"),
                         [](const auto& scheme) { return std::string(scheme.param); });

// The e4m3 number next to v, by its definition.
double nearest_f8(double v) {
  const double magnitude = std::min(std::abs(v), 448.0);
  const double step = std::ldexp(1.0, (magnitude < 0x1p-6 ? -6 : std::ilogb(magnitude)) - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, v);
}

// Rounds inputs by groups of `span`, each with its largest magnitude at 448, or with a fixed scale.
void round_inputs(test::Doubles& x, size_t span, double fixed_scale) {
  for (size_t first = 0; first < x.size(); first += span) {
    const size_t end = std::min(first + span, x.size());
    double most = 0;
    for (size_t i = first; i < end; ++i) {
      most = std::max(most, std::abs(x[i]));
    }
    const double scale = fixed_scale > 0 ? fixed_scale : most / 448;
    for (size_t i = first; i < end && scale > 0; ++i) {
      x[i] = nearest_f8(x[i] / scale) * scale;
    }
  }
}

// The twin's weights: exactly dequantised.
test::OracleModel oracle_of(const std::string& dir, const RandomModel& model) {
  const auto read = [](const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    return std::string{std::istreambuf_iterator<char>(in), {}};
  };
  const nlohmann::json config = nlohmann::json::parse(read(dir + "/config.json"));
  const std::string file = read(dir + "/model.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, file.data(), 8);
  const nlohmann::json header = nlohmann::json::parse(file.substr(8, header_size));
  const auto tensor = [&](const std::string& name) {
    const nlohmann::json& entry = header.at(name);
    const char* data = file.data() + 8 + header_size + entry["data_offsets"][0].get<size_t>();
    const bool bf16 = entry["dtype"] == "BF16";
    const size_t bytes =
        entry["data_offsets"][1].get<size_t>() - entry["data_offsets"][0].get<size_t>();
    test::Doubles out(bytes / (bf16 ? 2 : 4));
    for (size_t i = 0; i < out.size(); ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, data + i * (bf16 ? 2 : 4), bf16 ? 2 : 4);
      out[i] = static_cast<double>(std::bit_cast<float>(bf16 ? bits << 16 : bits));
    }
    return out;
  };
  test::OracleModel out;
  out.hidden = model.hidden_size;
  out.vocab = model.vocab_size;
  out.eps = config.at("rms_norm_eps").get<double>();
  out.embed = tensor("model.embed_tokens.weight");
  out.final_norm = tensor("model.norm.weight");
  out.head = tensor("lm_head.weight");
  for (int32_t i = 0; i < model.num_layers; ++i) {
    const std::string name = "model.layers." + std::to_string(i) + ".";
    test::OracleLayer layer;
    layer.num_heads = model.num_heads;
    layer.num_kv_heads = model.num_kv_heads;
    layer.head_dim = layer.rot_dim = model.head_dim;
    layer.theta = config.at("rope_theta").get<double>();
    layer.scale = 1.0 / std::sqrt(static_cast<double>(model.head_dim));
    layer.input_norm = tensor(name + "input_layernorm.weight");
    layer.q = tensor(name + "self_attn.q_proj.weight");
    layer.k = tensor(name + "self_attn.k_proj.weight");
    layer.v = tensor(name + "self_attn.v_proj.weight");
    layer.o = tensor(name + "self_attn.o_proj.weight");
    layer.ffn_norm = tensor(name + "post_attention_layernorm.weight");
    layer.gate = tensor(name + "mlp.gate_proj.weight");
    layer.up = tensor(name + "mlp.up_proj.weight");
    layer.down = tensor(name + "mlp.down_proj.weight");
    out.layers.push_back(layer);
  }
  return out;
}

// Against an oracle in double that rounds inputs by the scheme's definition. Where an input lies between two numbers, the
// oracle may have the other one, and what follows differs by the noise of rounding. Most requests have no such input.
TEST(QuantisedInputs, AreRoundedAsTheSchemeSays) {
  int num_equal = 0;  // of nine requests
  for (const char* scheme : {"fp8_block", "fp8_channel", "modelopt"}) {
    SCOPED_TRACE(scheme);
    const TempDir quantised;
    const TempDir twin;
    RandomModel base = small_model(scheme);
    base.family = "llama";
    const auto [model, of_twin] = QuantisedModel{base, scheme, 32}.write(quantised, twin);
    test::OracleModel oracle = oracle_of(of_twin, base);
    const bool blocks = std::string(scheme) == "fp8_block";
    const double fixed = std::string(scheme) == "modelopt" ? 0.03125 : 0.0;
    oracle.round_inputs = [&](test::Doubles& x) {
      round_inputs(x, blocks ? 128 : x.size(), fixed);
    };
    const test::DecoderOracle reference(oracle);
    for (const auto& [id, got] : run_quantised(model, "float32")) {
      std::vector<int32_t> ids = prompt_of(static_cast<int32_t>(id));
      const size_t first = ids.size() - 1;
      ids.insert(ids.end(), got.tokens.begin(), got.tokens.end() - 1);
      const std::vector<test::Doubles> logits = reference.logits(ids);
      double worst = 0;
      for (size_t step = 0; step < got.top.size(); ++step) {
        const test::Doubles& row = logits[first + step];
        double mass = 0;
        for (const double v : row) {
          mass += std::exp(v);
        }
        for (const auto& [token, logprob] : got.top[step]) {
          const double error = std::abs(static_cast<double>(logprob) -
                                        (row[static_cast<size_t>(token)] - std::log(mass)));
          worst = std::max(worst, error);
        }
      }
      EXPECT_LE(worst, 0.25) << id;
      num_equal += worst < 1e-4 ? 1 : 0;
    }
    EXPECT_NE(run_quantised(model, "float32").at(9).top,
              run_quantised(model, "float32", 1, "none", "off").at(9).top);
  }
  EXPECT_GE(num_equal, 5);
}

// Weights that were made for inputs of 8 bits take groups of 128 inputs, with one scale for weights and one for inputs.
TEST(QuantisedInputs, Int8TokensAreNearTheTwin) {
  const TempDir quantised;
  const TempDir twin;
  RandomModel base = small_model("");
  base.hidden_size = 256;
  base.intermediate_size = 384;
  const QuantisedModel model{base, "int8_token"};
  const auto [of_quantised, of_twin] = model.write(quantised, twin);
  const auto exact = run_quantised(of_twin, "float32");
  const auto rounded = run_quantised(of_quantised, "auto");
  expect_equal(run_quantised(of_quantised, "float32"), exact, 2e-4F);
  for (const auto& [id, want] : exact) {
    EXPECT_NE(rounded.at(id).top.front(), want.top.front());
    for (size_t i = 0; i < want.top.front().size(); ++i) {
      EXPECT_NEAR(rounded.at(id).top.front()[i].second, want.top.front()[i].second, 0.05) << id;
    }
  }
}

// Quantising while loading is what a checkpoint with a scale for each row has.
TEST(QuantisedAtLoad, EqualsACheckpointInFp8) {
  const TempDir plain;
  const TempDir quantised;
  const TempDir twin;
  const QuantisedModel model{small_model(""), "fp8_row"};  // outputs that are multiples of 16
  expect_equal(run_quantised(model.base.write(plain), "float32", 1, "fp8"),
               run_quantised(model.write(quantised, twin).first, "float32"),
               0.0F);
}

// The same in int8: a scale for each 32 inputs, an IEEE half. On a CPU the head has it too.
TEST(QuantisedAtLoad, EqualsACheckpointInInt8) {
  const TempDir plain;
  const TempDir quantised;
  const TempDir twin;
  const QuantisedModel model{small_model(""), "pack_most8", 32, true};
  const std::string whole = model.base.write(plain);
  const std::string packed = model.write(quantised, twin).first;
  expect_equal(run_quantised(whole, "float32", 1, "int8"), run_quantised(packed, "float32"), 0.0F);
  expect_equal(run_quantised(whole, "auto", 1, "int8"), run_quantised(packed, "auto"), 0.0F);
  EXPECT_NE(run_quantised(whole, "float32", 1, "int8").at(9).top,
            run_quantised(whole, "float32").at(9).top);
}

TEST(QuantisedOverRanks, DividesInt8AtLoad) {
  const TempDir plain;
  RandomModel base = small_model("");
  base.intermediate_size = 512;
  const std::string model = base.write(plain);
  expect_equal(run_quantised(model, "float32", 2, "int8"),
               run_quantised(model, "float32", 1, "int8"),
               2e-4F);
}

TEST(QuantisedOverRanks, DividesWhereGroupsDo) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "pack4", "awq", "gptq_order"}) {
    SCOPED_TRACE(scheme);
    const TempDir quantised;
    const TempDir twin;
    RandomModel base = small_model(scheme);
    base.intermediate_size = 512;
    const std::string model = QuantisedModel{base, scheme, 32}.write(quantised, twin).first;
    // Of a row that is divided, each rank rounds its part with a scale of its own.
    expect_equal(run_quantised(model, "float32", 2, "none", "off"),
                 run_quantised(model, "float32", 1, "none", "off"),
                 2e-4F);
    if (std::string(scheme) == "fp8_block") {
      expect_equal(run_quantised(model, "float32", 2), run_quantised(model, "float32"), 2e-4F);
    }
  }
}

TEST(QuantisedOverRanks, RefusesToCutThroughBlocks) {
  const TempDir quantised;
  const TempDir twin;
  RandomModel base = small_model("fp8_block");
  base.intermediate_size = 320;
  const std::string model = QuantisedModel{base, "fp8_block"}.write(quantised, twin).first;
  try {
    run_quantised(model, "float32", 2);
    FAIL() << "not refused";
  } catch (const StartupError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("down_proj"),
                                 ::testing::HasSubstr("multiples of 128")));
  }
}

}  // namespace
}  // namespace warprow
