// SPDX-License-Identifier: Apache-2.0
#include "worker/memory_plan.h"

#include "tests/support/mib.h"
#include "tests/support/source_path.h"
#include "tests/support/temp_dir.h"
#include "worker/kv_sizing.h"
#include "worker/model_plan.h"
#include "worker/rank_terms.h"

#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::kMiB;

EngineConfig tiny_config() {
  EngineConfig config;
  config.model = test::source_path("tests/golden/tiny/llama_gqa_tied");
  config.max_num_seqs = 4;
  config.max_num_batched_tokens = 32;
  config.kv_cache_memory_bytes = kMiB;
  return config;
}

// A model with shapes that GPU kernels support. Its weights are not read.
EngineConfig gpu_config(const test::TempDir& dir) {
  const nlohmann::json model = {{"architectures", {"Qwen3ForCausalLM"}},
                                {"num_hidden_layers", 2},
                                {"hidden_size", 256},
                                {"num_attention_heads", 4},
                                {"num_key_value_heads", 2},
                                {"head_dim", 64},
                                {"intermediate_size", 512},
                                {"vocab_size", 1024},
                                {"max_position_embeddings", 256},
                                {"rms_norm_eps", 1e-5},
                                {"rope_theta", 10000.0}};
  dir.write("config.json", model.dump());
  EngineConfig config = tiny_config();
  config.model = dir.path().string();
  config.load_format = "dummy";
  config.device = "h200";
  return config;
}

MachineFacts machine_with(int64_t bytes) { return {2, bytes, {}, {}}; }

// 0.9 x 80 - 16 - 1.5 - 4 - 1 = 49.5 GiB, in units that keep all numbers whole.
TEST(KvBudget, WorkedExample) {
  constexpr int64_t kTenthGiB = 1024 * kMiB / 10;
  KvBudget budget;
  budget.requested = 720 * kTenthGiB;
  budget.weights = 160 * kTenthGiB;
  budget.foreign = 15 * kTenthGiB;
  budget.step_peak = 40 * kTenthGiB;
  budget.graphs = 10 * kTenthGiB;
  EXPECT_EQ(available_kv_bytes(budget), 495 * kTenthGiB);
  budget.pinned = 5 * kTenthGiB;
  EXPECT_EQ(available_kv_bytes(budget), 490 * kTenthGiB);
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

TEST(ModelPlan, Float32TakesTwiceTheBytesOnAGpu) {
  const test::TempDir dir;
  EngineConfig config = gpu_config(dir);
  const ModelPlan bf16 = value_or_throw(plan_model(config, this_machine("h200")));
  config.dtype = "float32";
  const ModelPlan f32 = value_or_throw(plan_model(config, this_machine("h200")));
  EXPECT_EQ(f32.decoder.act_dtype, DType::kF32);
  EXPECT_EQ(f32.memory.kv_block_bytes, 2 * bf16.memory.kv_block_bytes);
  // Embedding, head and, for each of two layers, Q, K, V, O, gate, up and down.
  constexpr int64_t kWeights = 2 * 1024 * 256 + 2 * (256 * (256 + 128 + 128 + 256) + 3 * 256 * 512);
  EXPECT_EQ(f32.memory.weights_bytes - bf16.memory.weights_bytes, 2 * kWeights);
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
  EXPECT_NE(text.find("MiB planned    prompts and rings between host and device"),
            std::string::npos);
  EXPECT_EQ(text.find("estimated"), std::string::npos) << "a CPU's plan has no estimates";
  EXPECT_NE(plan_json(plan.memory).find("\"num_blocks\":512"), std::string::npos);
}

// Prompts: 2 regions x 4 rows x 256 tokens x 4 bytes in pinned memory, plus rings.
TEST(ModelPlan, PinnedMemoryIsCounted) {
  const ModelPlan plan = value_or_throw(plan_model(tiny_config(), machine_with(1024 * kMiB)));
  EXPECT_GT(plan.memory.pinned_bytes, 2 * 4 * 256 * 4);
  EXPECT_LT(plan.memory.pinned_bytes, kMiB);
  EXPECT_TRUE(plan.memory.pinned_is_device);
  EXPECT_EQ(plan.memory.planned_bytes(),
            plan.memory.weights_bytes + plan.memory.state_bytes + plan.memory.workspace_bytes +
                plan.memory.pinned_bytes + plan.memory.kv_bytes);
  const test::TempDir dir;
  const ModelPlan gpu = value_or_throw(plan_model(gpu_config(dir), this_machine("h200")));
  EXPECT_GT(gpu.memory.pinned_bytes, 2 * 4 * 256 * 4);
  EXPECT_FALSE(gpu.memory.pinned_is_device);
  EXPECT_EQ(gpu.memory.planned_bytes(),
            gpu.memory.weights_bytes + gpu.memory.state_bytes + gpu.memory.workspace_bytes +
                gpu.memory.graph_bytes + 32 * kMiB + gpu.memory.kv_bytes);
}

// Before the rank is built, 32 MiB are an estimate. Measured memory replaces the same amount of the estimate, and 16
// MiB stay reserved for kernels that load later.
TEST(MemoryPlan, ForeignMemoryIsEstimatedThenMeasured) {
  MemoryPlan plan;
  plan.foreign_estimated_bytes = 32 * kMiB;
  EXPECT_NE(format_plan(plan).find("32.0 MiB estimated  kernels and libraries\n"),
            std::string::npos);
  plan.note_foreign(10 * kMiB);
  EXPECT_EQ(plan.foreign_measured_bytes, 10 * kMiB);
  EXPECT_EQ(plan.foreign_estimated_bytes, 22 * kMiB);
  const std::string text = format_plan(plan);
  EXPECT_NE(text.find("10.0 MiB measured   kernels and libraries\n"), std::string::npos);
  EXPECT_NE(text.find("22.0 MiB estimated  kernels that load later\n"), std::string::npos);
  const nlohmann::json json = nlohmann::json::parse(plan_json(plan));
  EXPECT_EQ(json["foreign_bytes"], 32 * kMiB);
  EXPECT_EQ(json["figures"]["estimated"], nlohmann::json({"foreign_estimated_bytes"}));
  plan.foreign_estimated_bytes = 32 * kMiB;
  plan.note_foreign(40 * kMiB);
  EXPECT_EQ(plan.foreign_bytes(), 56 * kMiB);
  plan.note_foreign(-4096);  // another process freed memory meanwhile
  EXPECT_EQ(plan.foreign_measured_bytes, 0);
}

TEST(RankTerms, TheLeastOfEveryOfferIsAgreed) {
  const RankTerms offers[] = {{512}, {508}, {510}};
  EXPECT_EQ(agree(offers), RankTerms{508});
  EXPECT_EQ(agree({offers, 1}), RankTerms{512});
}

// A GPU's KV cache takes all remaining memory: less if libraries took more than estimated.
TEST(RankTerms, TheCacheShrinksByWhatLibrariesTookTooMuch) {
  const test::TempDir dir;
  EngineConfig config = gpu_config(dir);
  config.kv_cache_memory_bytes = 0;
  ModelPlan plan = value_or_throw(plan_model(config, this_machine("h200")));
  const int32_t planned = plan.kv_cache.num_blocks;
  const int64_t block_bytes = plan.memory.kv_block_bytes;
  plan.memory.note_foreign(10 * kMiB);
  EXPECT_EQ(offer(plan).num_blocks, planned) << "within the estimate";
  plan.memory.note_foreign(116 * kMiB);  // with 16 MiB for later, 100 MiB above the estimate of 32
  const RankTerms less = offer(plan);
  EXPECT_EQ(less.num_blocks, planned - 100 * kMiB / block_bytes);
  ASSERT_TRUE(take_terms(plan, less));
  EXPECT_EQ(plan.kv_cache.num_blocks, less.num_blocks);
  EXPECT_EQ(plan.memory.kv_bytes, less.num_blocks * block_bytes);
  EXPECT_EQ(plan.config.max_model_len, 256) << "the length is still supported";
}

TEST(RankTerms, ALengthThatTheUserAskedForIsNotCut) {
  EngineConfig config = tiny_config();
  ModelPlan plan = value_or_throw(plan_model(config, machine_with(1024 * kMiB)));
  ASSERT_TRUE(take_terms(plan, {1 + 4}));
  EXPECT_EQ(plan.config.max_model_len, 4 * 16);
  config.max_model_len = 256;
  ModelPlan with_len = value_or_throw(plan_model(config, machine_with(1024 * kMiB)));
  const Result<void> refused = take_terms(with_len, {1 + 4});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kOutOfMemory);
  EXPECT_NE(refused.error().message.find("holds 64 tokens, below max_model_len 256"),
            std::string::npos);
}

}  // namespace
}  // namespace warprow
