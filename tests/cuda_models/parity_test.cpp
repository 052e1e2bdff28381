// SPDX-License-Identifier: Apache-2.0
// Whole models on CUDA against the CPU with float32 activations and the same bf16 weights. Logprobs of every position
// agree within a bf16 tolerance, and tokens differ only at near-ties. With float32 on both they agree within its rounding.
#include "files/model_files.h"
#include "tests/support/gap_rule.h"
#include "tests/support/gemma3_case.h"
#include "tests/support/model_rig.h"
#include "tests/support/needle_model.h"
#include "tests/support/quantised_model.h"
#include "tests/support/random_gpt_oss.h"
#include "tests/support/random_hybrid.h"
#include "tests/support/random_model.h"
#include "tests/support/tiny_golden.h"

#include <iostream>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::expect_follows;
using test::GapCounts;
using test::GapRule;
using test::ModelRig;
using test::RandomModel;
using test::RigOptions;
using test::TempDir;

// Prompts of 1 to 130 tokens: one token, both sides of a block boundary and of a window of 32, several blocks.
std::vector<Request> greedy_requests(int32_t vocab_size, int32_t max_tokens) {
  std::mt19937 random(3);
  std::vector<Request> requests;
  for (const int32_t len : {1, 7, 15, 16, 17, 31, 33, 60, 100, 130}) {
    Request request;
    request.id = requests.size() + 1;
    for (int32_t i = 0; i < len; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % static_cast<uint32_t>(vocab_size)));
    }
    request.max_tokens = max_tokens;
    request.params.num_logprobs = 5;
    requests.push_back(request);
  }
  return requests;
}

RigOptions options_of(const std::string& model, const std::string& device, const char* dtype) {
  RigOptions options;
  options.config.model = model;
  options.config.device = device;
  options.config.dtype = dtype;
  options.config.kv_cache_memory_bytes = int64_t{64} << 20;
  options.config.max_model_len = 256;
  options.config.max_num_seqs = 16;
  options.config.max_num_batched_tokens = 128;
  return options;
}

class CudaParity : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const cuda::Availability found = cuda::find_device(); !found.why_not.empty()) {
      GTEST_SKIP() << found.why_not;
    }
  }

  // cpu_dtype: float32 keeps the CPU's cache in float32; bfloat16 rounds it like the GPU's.
  static void expect_parity(const std::string& model,
                            int32_t vocab_size,
                            const char* cpu_dtype,
                            const GapRule& rule,
                            const std::string& backend = "auto",
                            const char* dtype = "auto",
                            const char* kv_cache_dtype = "auto",
                            const char* fp8_activations = "auto") {
    const std::vector<Request> requests = greedy_requests(vocab_size, 24);
    RigOptions on_cpu = options_of(model, "cpu", cpu_dtype);
    on_cpu.config.kv_cache_dtype = kv_cache_dtype;
    on_cpu.config.fp8_activations = fp8_activations;
    ModelRig cpu(on_cpu);
    for (const Request& request : requests) {
      cpu.add(request);
    }
    cpu.run();
    RigOptions options = options_of(model, "cuda", dtype);
    options.config.attention_backend = backend;
    options.config.fp8_activations = fp8_activations;
    options.config.kv_cache_dtype = kv_cache_dtype;
    ModelRig gpu(options);
    const GapCounts counts = expect_follows(gpu, requests, cpu.results(), rule);
    EXPECT_EQ(counts.positions, static_cast<int64_t>(requests.size()) * 24);
    std::cout << "[ parity   ] " << gpu.attention_backends() << ": " << counts.positions
              << " positions, " << counts.flips << " near-ties, logprobs off by " << counts.mean
              << " on average, " << counts.worst << " at most\n";
  }

  static void expect_parity(const RandomModel& model, const std::string& backend = "auto") {
    const TempDir dir;
    expect_parity(model.write(dir), model.vocab_size, "bfloat16", {}, backend);
  }

  // float32 on both devices.
  static constexpr GapRule kFloat32Rule{.gap = 1e-4F, .mean = 1e-5, .tolerance = 1e-4F};
  static void expect_float32_parity(const RandomModel& model) {
    const TempDir dir;
    expect_parity(
        model.write(dir), model.vocab_size, "float32", kFloat32Rule, "float32", "float32");
  }
};

// The GPU rounds keys and values from bf16, so some of its 8-bit numbers are next to the CPU's.
TEST_F(CudaParity, EightBitKvCaches) {
  const GapRule rule{.gap = 0.2F, .mean = 0.03, .tolerance = 0.2F, .flips = 0.1};
  for (const char* kv : {"fp8_e4m3", "fp8_e5m2"}) {
    SCOPED_TRACE(kv);
    const TempDir dir;
    const RandomModel model{.num_layers = 2, .seed = 27};
    expect_parity(model.write(dir), model.vocab_size, "bfloat16", rule, "native", "auto", kv);
  }
}

// A needle in 32,000 tokens is found, within the bounds of the cache's rounding.
TEST_F(CudaParity, NeedleInAnEightBitKvCache) {
  const test::NeedleModel model(64);
  for (const auto& [kv, error] :
       {std::pair{"auto", 0x1p-8}, std::pair{"fp8_e4m3", 0x1p-4}, std::pair{"fp8_e5m2", 0x1p-3}}) {
    SCOPED_TRACE(kv);
    RigOptions options;
    options.config.device = "cuda";
    options.config.kv_cache_dtype = kv;
    test::NeedleModel::expect_found(model.ask(32000, options), 32000, error);
  }
}

// Quantised weights, whose bf16 values in a kernel differ from the CPU's exact ones by their rounding.
TEST_F(CudaParity, QuantisedWeights) {
  for (const char* scheme : {"fp8_block",
                             "fp8_channel",
                             "int8_channel",
                             "pack4",
                             "pack4_zeros",
                             "awq",
                             "gptq_order",
                             "gptq8"}) {
    SCOPED_TRACE(scheme);
    const TempDir dir;
    const TempDir twin;
    const test::QuantisedModel model{{.family = "qwen2", .num_layers = 2, .seed = 24}, scheme};
    expect_parity(model.write(dir, twin).first,
                  model.base.vocab_size,
                  "bfloat16",
                  {},
                  "auto",
                  "auto",
                  "auto",
                  "off");
  }
}

// The same of experts, a tensor for each. All are chosen, because one near-tie that the two decide differently is more than
// rounding; choices are in RouteExpertsCuda.*.
TEST_F(CudaParity, QuantisedExperts) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "int8_channel", "pack4_zeros", "awq"}) {
    SCOPED_TRACE(scheme);
    const TempDir dir;
    const TempDir twin;
    const test::QuantisedModel model{{.family = "qwen3_moe",
                                      .num_layers = 2,
                                      .intermediate_size = 192,
                                      .num_experts = 6,
                                      .num_chosen = 6,
                                      .seed = 29},
                                     scheme};
    expect_parity(model.write(dir, twin).first,
                  model.base.vocab_size,
                  "float32",
                  {},
                  "auto",
                  "auto",
                  "auto",
                  "off");
  }
}

// Inputs rounded to 8 bits, from bf16 on the GPU: some have the number next to the CPU's, and what follows differs by the
// noise of that rounding (tests/golden/quantised_test.cpp).
TEST_F(CudaParity, RoundedInputs) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "modelopt"}) {
    SCOPED_TRACE(scheme);
    const TempDir dir;
    const TempDir twin;
    const test::QuantisedModel model{{.family = "qwen2", .num_layers = 2, .seed = 24}, scheme};
    expect_parity(model.write(dir, twin).first,
                  model.base.vocab_size,
                  "float32",
                  {.gap = 0.4F, .mean = 0.06, .tolerance = 0.4F, .flips = 0.15});
  }
}
// Exactly dequantised.
TEST_F(CudaParity, QuantisedWeightsInFloat32) {
  for (const char* scheme : {"fp8_block", "awq"}) {
    SCOPED_TRACE(scheme);
    const TempDir dir;
    const TempDir twin;
    const test::QuantisedModel model{{.num_layers = 2, .seed = 26}, scheme};
    expect_parity(model.write(dir, twin).first,
                  model.base.vocab_size,
                  "float32",
                  kFloat32Rule,
                  "float32",
                  "float32",
                  "auto",
                  "off");
  }
}

TEST_F(CudaParity, Llama) { expect_parity(RandomModel{}); }
TEST_F(CudaParity, LlamaNative) { expect_parity(RandomModel{}, "native"); }
TEST_F(CudaParity, LlamaTiedHead) { expect_parity({.tied_head = true, .seed = 2}); }
TEST_F(CudaParity, LlamaHeadSize128) {
  expect_parity({.head_dim = 128, .num_heads = 6, .num_kv_heads = 1, .seed = 3});
}
TEST_F(CudaParity, LlamaHeadSize128Native) {
  expect_parity({.head_dim = 128, .num_heads = 6, .num_kv_heads = 1, .seed = 3}, "native");
}
TEST_F(CudaParity, Qwen2WithBias) { expect_parity({.family = "qwen2", .seed = 4}); }
TEST_F(CudaParity, Qwen3WithQkNorm) {
  expect_parity({.family = "qwen3", .head_dim = 128, .num_heads = 4, .num_kv_heads = 4, .seed = 5});
}
TEST_F(CudaParity, Qwen3WithQkNormNative) {
  expect_parity({.family = "qwen3", .num_heads = 8, .num_kv_heads = 2, .seed = 6}, "native");
}
TEST_F(CudaParity, MistralWithWindow) {
  expect_parity({.family = "mistral", .window = 32, .seed = 7});
}
TEST_F(CudaParity, MistralWithWindowFlashInfer) {
  expect_parity({.family = "mistral", .window = 32, .seed = 7}, "flashinfer");
}
TEST_F(CudaParity, MistralWithWindowAndHeadSize128) {
  expect_parity({.family = "mistral", .head_dim = 128, .window = 32, .seed = 8});
}
TEST_F(CudaParity, TwoKvGroups) {
  expect_parity({.family = "qwen2", .window = 32, .first_window_layer = 2, .seed = 9});
}
TEST_F(CudaParity, TwoBackends) { expect_parity({.seed = 10}, "native:0-1,flashinfer"); }

// Sinks, windows in every second layer, experts with biases and a clamped gate; experts in bf16 and in 4 bits.
TEST_F(CudaParity, GptOss) {
  for (const bool mxfp4 : {false, true}) {
    SCOPED_TRACE(mxfp4);
    const TempDir dir;
    const test::RandomGptOss model{.mxfp4 = mxfp4, .seed = 21};
    expect_parity(model.write(dir), model.vocab_size, "bfloat16", {});
  }
}

// Gated delta nets between layers of gated attention, with the sizes of real heads and with others.
constexpr test::RandomHybrid kHybrids[] = {
    {.seed = 31},
    {.num_key_heads = 2, .num_value_heads = 2, .key_dim = 128, .value_dim = 128, .seed = 32}};
TEST_F(CudaParity, Hybrid) {
  for (const test::RandomHybrid& model : kHybrids) {
    const TempDir dir;
    expect_parity(model.write(dir), model.vocab_size, "bfloat16", {});
  }
}
TEST_F(CudaParity, Float32Hybrid) {
  for (const test::RandomHybrid& model : kHybrids) {
    const TempDir dir;
    expect_parity(
        model.write(dir), model.vocab_size, "float32", kFloat32Rule, "float32", "float32");
  }
}

// The tiny models of transformers' golden values, whose head sizes only float32 has kernels for.
TEST_F(CudaParity, Float32TinyModelsEqualTransformers) {
  for (const char* name :
       {"llama_gqa_tied", "llama_mha",        "llama3_rope", "mistral_window", "qwen2",
        "qwen3",          "qwen3_two_groups", "qwen3_moe",   "qwen2_moe",      "mixtral",
        "gemma2",         "gemma3",           "glm",         "glm4",           "granite",
        "olmo2",          "phi3_long",        "phi3_window", "qwen3_yarn",     "smollm3",
        "gpt_oss",        "gpt_oss_mxfp4",    "glm4_moe",    "glm4_moe_plain", "gemma4_inputs",
        "gemma4_moe",     "qwen3_next",       "qwen3_5_text"}) {
    for (const char* graphs : {"none", "full_and_piecewise"}) {
      SCOPED_TRACE(::testing::Message() << name << ", graphs " << graphs);
      RigOptions options = test::tiny_options(name);
      options.config.device = "cuda";
      options.config.cudagraph_mode = graphs;
      test::expect_equals_golden(options, name, 1e-5F);
    }
  }
}
TEST_F(CudaParity, Float32TinyModelsOfGgufEqualTransformers) {
  for (const char* name :
       {"llama_gqa_tied", "llama_mha", "llama3_rope", "qwen2", "qwen3", "qwen3_moe", "mixtral"}) {
    SCOPED_TRACE(name);
    RigOptions options = test::tiny_options(name, "/model.gguf");
    options.config.device = "cuda";
    test::expect_equals_golden(options, name, 1e-5F);
  }
}
// GGUF's experts in MXFP4 are those of safetensors, in the same tiles on Hopper. The file's other matrices are the same too.
TEST_F(CudaParity, Mxfp4OfGgufAsOfSafetensors) {
  const auto tokens = [](const char* file) {
    RigOptions options = test::tiny_options("gpt_oss_mxfp4", file);
    options.config.device = "cuda";
    options.config.dtype = "auto";
    ModelRig rig(options);
    for (const Request& request : greedy_requests(128, 24)) {
      rig.add(request);
    }
    rig.run();
    std::vector<std::vector<TokenId>> all;
    for (const auto& [id, result] : rig.results()) {
      all.push_back(result.tokens);
    }
    return all;
  };
  const auto of_gguf = tokens("/model.gguf");
  EXPECT_EQ(of_gguf.size(), 10U);
  EXPECT_EQ(of_gguf, tokens(""));
}
TEST_F(CudaParity, Float32Gemma3EqualsTheOracle) {
  test::expect_gemma3_equals_oracle(test::gemma3_config(), "cuda");
}
TEST_F(CudaParity, Float32Llama) { expect_float32_parity(RandomModel{}); }
TEST_F(CudaParity, Float32LlamaTiedHead) {
  expect_float32_parity({.head_dim = 128, .num_heads = 6, .num_kv_heads = 1, .tied_head = true});
}
TEST_F(CudaParity, Float32Qwen2WithBias) { expect_float32_parity({.family = "qwen2", .seed = 4}); }
TEST_F(CudaParity, Float32Qwen3WithQkNorm) {
  expect_float32_parity({.family = "qwen3", .head_dim = 80, .seed = 5});
}
TEST_F(CudaParity, Float32MistralWithWindow) {
  expect_float32_parity({.family = "mistral", .window = 32, .seed = 7});
}
TEST_F(CudaParity, Float32TwoKvGroups) {
  expect_float32_parity({.family = "qwen2", .window = 32, .first_window_layer = 2, .seed = 9});
}
TEST_F(CudaParity, Float32SmolLm2) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  expect_parity("smollm2",
                49152,
                "float32",
                {.gap = 1e-3F, .mean = 1e-4, .tolerance = 1e-3F},
                "auto",
                "float32");
}

// Real weights, dequantised to bf16 on the GPU and exactly on the CPU. The tolerances therefore include the rounding of
// the weights. Prompts are random tokens.
TEST_F(CudaParity, SmolLm2) {
  if (!resolve_model("smollm2")) {
    GTEST_SKIP() << "smollm2 is not in the cache: run ./dev demo or ./dev test";
  }
  expect_parity("smollm2", 49152, "float32", {.mean = 0.04, .tolerance = 0.4F});
}

}  // namespace
}  // namespace warprow
