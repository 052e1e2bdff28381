// SPDX-License-Identifier: Apache-2.0
// Tiny random models of every architecture against transformers in float32, from safetensors and
// from GGUF. Data: tools/gen/make_tiny_models.py and make_tiny_gguf.py.
#include "tests/support/tiny_golden.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::RigOptions;
using test::tiny_options;

struct Case {
  const char* model;
  bool gguf;
};
void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.model; }

class TinyModel : public ::testing::TestWithParam<Case> {};

TEST_P(TinyModel, EqualsTransformers) {
  const auto& [model, gguf] = GetParam();
  test::expect_equals_golden(tiny_options(model, gguf ? "/model.gguf" : ""), model);
}

INSTANTIATE_TEST_SUITE_P(All,
                         TinyModel,
                         ::testing::Values(Case{"llama_gqa_tied", false},
                                           Case{"llama_gqa_tied", true},
                                           Case{"llama_mha", false},
                                           Case{"llama_mha", true},
                                           Case{"llama3_rope", false},
                                           Case{"llama3_rope", true},
                                           Case{"mistral_window", false},
                                           Case{"mixtral", false},
                                           Case{"mixtral", true},
                                           Case{"qwen2", false},
                                           Case{"qwen2", true},
                                           Case{"qwen2_moe", false},
                                           Case{"qwen2_moe", true},
                                           Case{"qwen3", false},
                                           Case{"qwen3", true},
                                           Case{"qwen3_moe", false},
                                           Case{"qwen3_moe", true},
                                           Case{"qwen3_two_groups", false}),
                         [](const auto& test_case) {
                           return std::string(test_case.param.model) +
                                  (test_case.param.gguf ? "_gguf" : "_safetensors");
                         });

class TinyFamily : public TinyModel {};

TEST_P(TinyFamily, EqualsTransformers) {
  const auto& [model, gguf] = GetParam();
  RigOptions options = tiny_options(model, gguf ? "/model.gguf" : "");
  if (std::string(model) == "phi3_short") {
    options.config.max_model_len = 128;  // the original length: short factors
  }
  test::expect_equals_golden(options, model);
}

INSTANTIATE_TEST_SUITE_P(All,
                         TinyFamily,
                         ::testing::Values(Case{"gemma2", false},
                                           Case{"gemma2", true},
                                           Case{"gemma3", false},
                                           Case{"gemma3", true},
                                           Case{"gemma4_inputs", false},
                                           Case{"gemma4_moe", false},
                                           Case{"glm", false},
                                           Case{"glm4", false},
                                           Case{"glm4", true},
                                           Case{"glm4_moe", false},
                                           Case{"glm4_moe", true},
                                           Case{"glm4_moe_plain", false},
                                           Case{"glm4_moe_plain", true},
                                           Case{"gpt_oss", false},
                                           Case{"gpt_oss", true},
                                           Case{"gpt_oss_mxfp4", false},
                                           Case{"gpt_oss_mxfp4", true},
                                           Case{"granite", false},
                                           Case{"granite", true},
                                           Case{"olmo2", false},
                                           Case{"olmo2", true},
                                           Case{"phi3_long", false},
                                           Case{"phi3_long", true},
                                           Case{"phi3_short", false},
                                           Case{"phi3_short", true},
                                           Case{"phi3_window", false},
                                           Case{"phi3_window", true},
                                           Case{"qwen3_5", false},
                                           Case{"qwen3_5_moe", false},
                                           Case{"qwen3_5_moe", true},
                                           Case{"qwen3_5_text", false},
                                           Case{"qwen3_5_text", true},
                                           Case{"qwen3_next", false},
                                           Case{"qwen3_next", true},
                                           Case{"qwen3_yarn", false},
                                           Case{"smollm3", false},
                                           Case{"smollm3", true}),
                         [](const auto& test_case) {
                           return std::string(test_case.param.model) +
                                  (test_case.param.gguf ? "_gguf" : "_safetensors");
                         });

// Sliding-window and full attention over one block pool: two groups of two layers. The window group frees blocks that
// have left the window.
TEST(TwoGroups, ShareOnePool) {
  const ModelPlan plan =
      value_or_throw(plan_model(tiny_options("qwen3_two_groups").config, this_machine()));
  ASSERT_EQ(plan.kv.groups.size(), 2U);
  EXPECT_EQ(plan.kv.groups[0].kind, KvKind::kFull);
  EXPECT_EQ(plan.kv.groups[1].kind, KvKind::kSlidingWindow);
  EXPECT_EQ(plan.kv.groups[1].window, 20);
  EXPECT_EQ(plan.kv.groups[0].num_layers, 2);
  EXPECT_EQ(plan.kv.layers[3].group, 1);
  EXPECT_EQ(plan.kv.layers[3].index, 1);
}

}  // namespace
}  // namespace warprow
