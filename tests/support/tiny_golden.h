// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/model_rig.h"
#include "tests/support/source_path.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow::test {

// The tiny models of tests/golden/tiny and what transformers computes with them in float32.

inline std::string tiny_dir(const std::string& name) {
  return source_path("tests/golden/tiny/") + name;
}

// Exact options for a tiny model; file: its weights, or empty for those in safetensors.
inline RigOptions tiny_options(const std::string& name, const std::string& file = {}) {
  RigOptions options;
  options.config.model = tiny_dir(name) + file;
  options.config.dtype = "float32";
  options.config.max_num_batched_tokens = 64;
  options.config.max_num_seqs = 8;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.config.threads = 1;
  return options;
}

// The prompts of the model's golden file, with their greedy tokens.
inline nlohmann::json tiny_prompts(const std::string& name) {
  std::ifstream file(tiny_dir(name) + "/golden.json");
  return nlohmann::json::parse(file)["prompts"];
}

// Logits that are no further apart than `tie` may be in another order.
inline void expect_equals_golden(const RigResult& result,
                                 const nlohmann::json& prompt,
                                 float tie = 0.0F) {
  EXPECT_EQ(result.tokens, prompt["greedy"].get<std::vector<TokenId>>());
  const auto& steps = prompt["steps"];
  ASSERT_GE(result.top.size(), steps.size());
  for (size_t step = 0; step < steps.size(); ++step) {
    SCOPED_TRACE(step);
    ASSERT_EQ(result.top[step].size(), 20U);
    // Logits relative to the step's largest one, because logprobs determine logits up to a constant.
    const float top_logit = steps[step][0][1].get<float>();
    const float top_logprob = result.top[step][0].second;
    for (size_t i = 0; i < 20; ++i) {
      const auto& [token, logprob] = result.top[step][i];
      const float logit = steps[step][i][1].get<float>();
      EXPECT_TRUE(std::ranges::any_of(steps[step],
                                      [&](const nlohmann::json& entry) {
                                        return entry[0].get<TokenId>() == token &&
                                               std::abs(entry[1].get<float>() - logit) <= tie;
                                      }))
          << "token " << token << " at " << i << ", for " << steps[step][i][0];
      EXPECT_NEAR(logprob - top_logprob, logit - top_logit, 1e-4);
    }
  }
}

// All prompts together.
inline void expect_equals_golden(const RigOptions& options,
                                 const std::string& name,
                                 float tie = 0.0F) {
  const nlohmann::json prompts = tiny_prompts(name);
  ModelRig rig(options);
  uint64_t id = 0;
  for (const auto& prompt : prompts) {
    Request request;
    request.id = ++id;
    request.prompt = prompt["ids"].get<std::vector<TokenId>>();
    request.max_tokens = static_cast<int32_t>(prompt["greedy"].size());
    request.params.num_logprobs = 20;
    rig.add(request);
  }
  const auto& results = rig.run();
  id = 0;
  for (const auto& prompt : prompts) {
    SCOPED_TRACE(prompt["ids"].size());
    expect_equals_golden(results.at(++id), prompt, tie);
  }
}

}  // namespace warprow::test
