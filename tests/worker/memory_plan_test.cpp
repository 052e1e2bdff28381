// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_plan.h"

#include "worker/model_plan.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

EngineConfig tiny_config() {
  EngineConfig config;
  config.model = std::string(WARPROW_SOURCE_DIR) + "/tests/golden/tiny/llama_gqa_tied";
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = kMiB;
  return config;
}

MachineFacts machine_with(int64_t bytes) { return {2, bytes, {}, {}}; }

// 0.9 x 80 - 16 - 1.5 - 4 - 1 = 49.5 GiB, in tenths of a MiB-multiple so that all numbers are
// whole.
TEST(KvBudget, WorkedExample) {
  constexpr int64_t kTenthGiB = 1024 * kMiB / 10;
  KvBudget budget;
  budget.requested = 720 * kTenthGiB;
  budget.weights = 160 * kTenthGiB;
  budget.foreign = 15 * kTenthGiB;
  budget.step_peak = 40 * kTenthGiB;
  budget.graphs = 10 * kTenthGiB;
  EXPECT_EQ(available_kv_bytes(budget), 495 * kTenthGiB);
  budget.weights = 1000 * kTenthGiB;
  EXPECT_LT(available_kv_bytes(budget), 0);
}

TEST(ModelPlan, CountsBlocks) {
  const ModelPlan plan = value_or_throw(plan_model(tiny_config(), machine_with(1024 * kMiB)));
  // 2 layers x 2 x 16 tokens x 2 heads x 8 x 2 bytes
  EXPECT_EQ(plan.memory.kv_block_bytes, 2 * 2 * 16 * 2 * 8 * 2);
  EXPECT_EQ(plan.memory.num_blocks, kMiB / plan.memory.kv_block_bytes);
  EXPECT_EQ(plan.config.max_model_len, 256);
  EXPECT_GT(plan.memory.weights_bytes, 0);
}

TEST(ModelPlan, LengthIsCutToTheCache) {
  EngineConfig config = tiny_config();
  config.kv_cache_memory_bytes = 5 * 2048;
  const ModelPlan plan = value_or_throw(plan_model(config, machine_with(1024 * kMiB)));
  EXPECT_EQ(plan.config.max_model_len, 4 * 16);
  config.max_model_len = 65;
  const auto too_long = plan_model(config, machine_with(1024 * kMiB));
  ASSERT_FALSE(too_long);
  EXPECT_EQ(too_long.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(too_long.error().message.find("max_model_len is 65"), std::string::npos);
  EXPECT_NE(too_long.error().message.find("64 tokens"), std::string::npos);
}

TEST(ModelPlan, TooLittleMemoryIsRefusedWithNumbers) {
  const auto plan = plan_model(tiny_config(), machine_with(kMiB));
  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(plan.error().message.find("not enough memory"), std::string::npos);
}

TEST(ModelPlan, LongerThanTheModelIsRefused) {
  EngineConfig config = tiny_config();
  config.max_model_len = 257;
  const auto plan = plan_model(config, machine_with(1024 * kMiB));
  ASSERT_FALSE(plan);
  EXPECT_NE(plan.error().message.find("257 is above the model's 256"), std::string::npos);
}

TEST(ModelPlan, SizesAsPrinted) {
  const ModelPlan plan = value_or_throw(plan_model(tiny_config(), machine_with(1024 * kMiB)));
  const std::string text = format_plan(plan.memory);
  EXPECT_NE(text.find("weights"), std::string::npos);
  EXPECT_NE(text.find("concurrency"), std::string::npos);
  EXPECT_NE(plan_json(plan.memory).find("\"num_blocks\":512"), std::string::npos);
}

}  // namespace
}  // namespace warprow
