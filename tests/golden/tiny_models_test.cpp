// SPDX-License-Identifier: Apache-2.0
// Tiny random models of every architecture against transformers in float32, from safetensors and
// from GGUF. Data: tools/gen/make_tiny_models.py and make_tiny_gguf.py.
#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::ModelRig;
using test::RigOptions;
using test::RigResult;

std::string tiny_dir(const std::string& name) {
  return test::source_path("tests/golden/tiny/") + name;
}

struct Case {
  const char* model;
  bool gguf;
};
void PrintTo(const Case& test_case, std::ostream* out) { *out << test_case.model; }

class TinyModel : public testing::TestWithParam<Case> {};

RigOptions options_for(const Case& test_case) {
  RigOptions options;
  options.config.model = tiny_dir(test_case.model) + (test_case.gguf ? "/model.gguf" : "");
  options.config.dtype = "float32";
  options.config.max_num_batched_tokens = 64;
  options.config.max_num_seqs = 8;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.config.threads = 1;
  return options;
}

void expect_equal(const RigResult& result, const nlohmann::json& prompt) {
  EXPECT_EQ(result.tokens, prompt["greedy"].get<std::vector<TokenId>>());
  const auto& steps = prompt["steps"];
  for (size_t step = 0; step < steps.size(); ++step) {
    SCOPED_TRACE(step);
    ASSERT_EQ(result.top[step].size(), 20U);
    // Logits relative to the step's largest one, because logprobs determine logits up to a constant.
    const float top_logit = steps[step][0][1].get<float>();
    const float top_logprob = result.top[step][0].second;
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(result.top[step][i].first, steps[step][i][0].get<TokenId>());
      EXPECT_NEAR(result.top[step][i].second - top_logprob,
                  steps[step][i][1].get<float>() - top_logit,
                  1e-4);
    }
  }
}

TEST_P(TinyModel, EqualsTransformers) {
  std::ifstream file(tiny_dir(GetParam().model) + "/golden.json");
  const auto golden = nlohmann::json::parse(file);
  ModelRig rig(options_for(GetParam()));
  uint64_t id = 0;
  for (const auto& prompt : golden["prompts"]) {
    Request request;
    request.id = ++id;
    request.prompt = prompt["ids"].get<std::vector<TokenId>>();
    request.max_tokens = static_cast<int32_t>(prompt["greedy"].size());
    request.params.num_logprobs = 20;
    rig.add(request);
  }
  const auto& results = rig.run();
  id = 0;
  for (const auto& prompt : golden["prompts"]) {
    SCOPED_TRACE(prompt["ids"].size());
    expect_equal(results.at(++id), prompt);
  }
}

INSTANTIATE_TEST_SUITE_P(All,
                         TinyModel,
                         testing::Values(Case{"llama_gqa_tied", false},
                                         Case{"llama_gqa_tied", true},
                                         Case{"llama_mha", false},
                                         Case{"llama_mha", true},
                                         Case{"llama3_rope", false},
                                         Case{"llama3_rope", true},
                                         Case{"mistral_window", false},
                                         Case{"qwen2", false},
                                         Case{"qwen2", true},
                                         Case{"qwen3", false},
                                         Case{"qwen3", true},
                                         Case{"qwen3_two_groups", false}),
                         [](const auto& test_case) {
                           return std::string(test_case.param.model) +
                                  (test_case.param.gguf ? "_gguf" : "_safetensors");
                         });

// Sliding-window and full attention over one block pool: two groups of two layers. The window group frees blocks that
// have left the window.
TEST(TwoGroups, ShareOnePool) {
  const ModelPlan plan =
      value_or_throw(plan_model(options_for({"qwen3_two_groups", false}).config, this_machine()));
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
