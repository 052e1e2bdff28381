// SPDX-License-Identifier: Apache-2.0
// Quantised checkpoints against their twins, whose weights are the same values in float32.
#include "tests/support/model_rig.h"
#include "tests/support/quantised_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

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

std::map<uint64_t, test::RigResult> run(const std::string& model,
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
  std::mt19937 random(3);
  for (const int32_t len : {1, 9, 40}) {
    Request request;
    request.id = static_cast<uint64_t>(len);
    for (int32_t i = 0; i < len; ++i) {
      request.prompt.push_back(static_cast<TokenId>(random() % 256));
    }
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
  const QuantisedModel model{small_model(GetParam()), GetParam(), 32};
  const auto [of_quantised, of_twin] = model.write(quantised, twin);
  expect_equal(run(of_quantised, "float32", 1, "none", "off"), run(of_twin, "float32"), 2e-4F);
}

INSTANTIATE_TEST_SUITE_P(All,
                         Quantised,
                         ::testing::Values("fp8_block",
                                           "fp8_tensor",
                                           "fp8_channel",
                                           "modelopt",
                                           "int8_channel",
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

// Inputs that are rounded to 8 bits change probabilities, and not by much.
TEST(QuantisedInputs, AreRoundedUnlessSwitchedOff) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "modelopt"}) {
    SCOPED_TRACE(scheme);
    const TempDir quantised;
    const TempDir twin;
    const std::string model =
        QuantisedModel{small_model(scheme), scheme, 32}.write(quantised, twin).first;
    const auto rounded = run(model, "float32");
    const auto exact = run(model, "float32", 1, "none", "off");
    float most = 0.0F;
    for (const auto& [id, want] : exact) {
      const test::RigResult& got = rounded.at(id);
      for (const auto& [token, logprob] : want.top.front()) {
        for (const auto& [other, other_logprob] : got.top.front()) {
          most = std::max(most, other == token ? std::fabs(logprob - other_logprob) : 0.0F);
        }
      }
    }
    EXPECT_GT(most, 1e-5F);
    EXPECT_LT(most, 5e-2F);
  }
}

// Quantising while loading is what a checkpoint with a scale for each row has.
TEST(QuantisedAtLoad, EqualsACheckpointInFp8) {
  const TempDir plain;
  const TempDir quantised;
  const TempDir twin;
  const QuantisedModel model{small_model(""), "fp8_row"};  // outputs that are multiples of 16
  expect_equal(run(model.base.write(plain), "float32", 1, "fp8"),
               run(model.write(quantised, twin).first, "float32"),
               0.0F);
}

TEST(QuantisedOverRanks, DividesWhereGroupsDo) {
  for (const char* scheme : {"fp8_block", "fp8_channel", "pack4", "awq", "gptq_order"}) {
    SCOPED_TRACE(scheme);
    const TempDir quantised;
    const TempDir twin;
    RandomModel base = small_model(scheme);
    base.intermediate_size = 512;
    const std::string model = QuantisedModel{base, scheme, 32}.write(quantised, twin).first;
    expect_equal(run(model, "float32", 2), run(model, "float32"), 2e-4F);
  }
}

TEST(QuantisedOverRanks, RefusesToCutThroughBlocks) {
  const TempDir quantised;
  const TempDir twin;
  RandomModel base = small_model("fp8_block");
  base.intermediate_size = 320;
  const std::string model = QuantisedModel{base, "fp8_block"}.write(quantised, twin).first;
  try {
    run(model, "float32", 2);
    FAIL() << "not refused";
  } catch (const StartupError& error) {
    EXPECT_THAT(error.what(),
                ::testing::AllOf(::testing::HasSubstr("down_proj"),
                                 ::testing::HasSubstr("multiples of 128")));
  }
}

}  // namespace
}  // namespace warprow
