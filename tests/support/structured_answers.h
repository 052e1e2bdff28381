// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "executor/make_executor.h"
#include "tests/engine/toy_engine.h"
#include "tests/support/random_model.h"
#include "text/byte_text.h"

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow::test {

// Its texts are at most 48 bytes long.
inline constexpr const char* kOrderSchema = R"({
  "type": "object",
  "properties": {
    "size": {"enum": ["small", "large"]},
    "counts": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99},
               "minItems": 1, "maxItems": 3},
    "paid": {"type": "boolean"}
  },
  "required": ["size", "counts", "paid"],
  "additionalProperties": false,
  "x-guidance": {"whitespace_flexible": false}
})";

inline void expect_order(const std::string& text) {
  const nlohmann::json order = nlohmann::json::parse(text, nullptr, false);
  ASSERT_TRUE(order.is_object()) << text;
  EXPECT_EQ(order.size(), 3U) << text;
  EXPECT_TRUE(order["size"] == "small" || order["size"] == "large") << text;
  EXPECT_TRUE(order["paid"].is_boolean()) << text;
  ASSERT_TRUE(order["counts"].is_array()) << text;
  EXPECT_TRUE(order["counts"].size() >= 1 && order["counts"].size() <= 3) << text;
  for (const nlohmann::json& count : order["counts"]) {
    ASSERT_TRUE(count.is_number_integer()) << text;
    EXPECT_TRUE(count >= 0 && count <= 99) << text;
  }
}

struct StructuredRun {
  std::vector<std::string> texts;  // structured requests first, then the others
  EngineStats stats;
};

// Runs three sampled requests under the schema among three without, on a random model on the config's device.
inline StructuredRun run_structured(EngineConfig config, int32_t mask_delay_us) {
  constexpr size_t kStructured = 3;
  const TempDir dir;
  config.model = RandomModel{.seed = 31}.write(dir);
  config.kv_cache_memory_bytes = int64_t{64} << 20;
  config.max_model_len = 256;
  config.max_num_seqs = 8;
  config.max_num_batched_tokens = 128;
  config.grammar_mask_delay_us = mask_delay_us;
  testing::Client client;
  const std::unique_ptr<Engine> engine =
      make_engine(config, value_or_throw(make_byte_text()), make_executor(config));
  for (size_t i = 0; i < 2 * kStructured; ++i) {
    const auto seed = static_cast<int64_t>(i);
    GenerationRequest request =
        testing::greedy_request({static_cast<TokenId>(40 + i), 3, 200, 9}, 100);
    request.sampling.temperature = 1;
    request.sampling.seed = seed;
    if (i < kStructured) {
      request.sampling.structured_output = StructuredOutput{GrammarKind::kJsonSchema, kOrderSchema};
    }
    client.submit(*engine, request);
  }
  client.wait_all();
  StructuredRun run;
  for (size_t i = 0; i < 2 * kStructured; ++i) {
    SCOPED_TRACE(i);
    const testing::Told& told = client.wait(i);
    run.texts.push_back(told.text);
    if (i < kStructured) {
      EXPECT_EQ(told.last.finish_reason, FinishReason::kStop);
      expect_order(told.text);
    } else {
      EXPECT_EQ(told.token_ids.size(), 100U);
    }
  }
  run.stats = engine->stats();
  return run;
}

// Runs with immediate masks and with masks so late that rows are withheld. Both must give the same answers, which
// satisfy the schema. The config must make answers independent of the batch.
inline void expect_structured_answers(const EngineConfig& config, int32_t mask_delay_us) {
  const StructuredRun prompt = run_structured(config, 0);
  const StructuredRun late = run_structured(config, mask_delay_us);
  EXPECT_GT(late.stats.withheld_rows, 0);
  EXPECT_GT(late.stats.grammar_masks, 60);
  EXPECT_EQ(late.texts, prompt.texts);
}

}  // namespace warprow::test
