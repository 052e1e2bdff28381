// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/decoder_oracle.h"
#include "tests/support/model_rig.h"
#include "tests/support/random_checkpoint.h"
#include "tests/support/temp_dir.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow::test {

// The likeliest 20 tokens, best first, against the logits that they come from.
inline void expect_top(const RigResult::Top& top, const Doubles& logits) {
  std::vector<size_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return logits[a] > logits[b]; });
  ASSERT_EQ(top.size(), 20U);
  for (size_t i = 0; i < top.size(); ++i) {
    EXPECT_EQ(static_cast<size_t>(top[i].first), order[i]) << i;
    EXPECT_NEAR(top[i].second - top[0].second, logits[order[i]] - logits[order[0]], 1e-4) << i;
  }
}

// Loads config.json and the weights as a user would, continues prompts of 1, 9 and 45 tokens by 10, with prompts in chunks
// of 16, in float32, and compares the logits of every step with the oracle's. The vocabulary has at least 93 tokens.
inline void expect_equals_oracle(const nlohmann::json& config,
                                 const Bytes& weights,
                                 const OracleModel& model,
                                 const std::string& device = "cpu",
                                 const std::string& kv_cache_dtype = "auto") {
  const TempDir dir;
  dir.write("config.json", config.dump());
  dir.write("model.safetensors", weights);
  RigOptions options;
  options.config.model = dir.path().string();
  options.config.device = device;
  options.config.dtype = "float32";
  options.config.kv_cache_dtype = kv_cache_dtype;
  options.config.max_num_batched_tokens = 16;
  options.config.max_num_seqs = 4;
  options.config.kv_cache_memory_bytes = 1 << 20;
  options.config.threads = 1;
  ModelRig rig(options);
  std::vector<std::vector<TokenId>> prompts;
  for (const auto& [len, seed] : {std::pair{1, 3}, std::pair{9, 5}, std::pair{45, 11}}) {
    Request request;
    for (int i = 0; i < len; ++i) {
      request.prompt.push_back(3 + (i * i * 7 + i * seed) % 90);
    }
    prompts.push_back(request.prompt);
    request.id = prompts.size();
    request.max_tokens = 10;
    request.params.num_logprobs = 20;
    rig.add(request);
  }
  const auto& results = rig.run();
  const DecoderOracle oracle(model);
  for (size_t i = 0; i < prompts.size(); ++i) {
    const RigResult& result = results.at(i + 1);
    ASSERT_EQ(result.tokens.size(), 10U);
    std::vector<TokenId> ids = prompts[i];
    ids.insert(ids.end(), result.tokens.begin(), result.tokens.end());
    const std::vector<Doubles> logits = oracle.logits({ids.begin(), ids.end()});
    for (size_t step = 0; step < result.tokens.size(); ++step) {
      SCOPED_TRACE(::testing::Message() << "prompt " << prompts[i].size() << " step " << step);
      expect_top(result.top[step], logits[prompts[i].size() - 1 + step]);
    }
  }
}

}  // namespace warprow::test
