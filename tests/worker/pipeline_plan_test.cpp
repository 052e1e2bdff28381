// SPDX-License-Identifier: Apache-2.0
// What a stage of a pipeline takes: the weights of its layers, read as such from the files, and their cache.
#include "files/model_files.h"
#include "models/layer_needs.h"
#include "models/registry.h"
#include "models/stage_split.h"
#include "tests/support/mib.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"
#include "tests/worker/loaded_bytes.h"
#include "worker/model_plan.h"
#include "worker/rank_plans.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::kMiB;

class PipelinePlan : public ::testing::Test {
 protected:
  PipelinePlan() {
    model_.num_layers = 5;
    path_ = model_.write(dir_);
  }

  [[nodiscard]] EngineConfig config(int32_t num_stages, int32_t tensor_size = 1) const {
    EngineConfig config;
    config.model = path_;
    config.device = "cpu";
    config.tensor_parallel_size = tensor_size;
    config.pipeline_parallel_size = num_stages;
    config.kv_cache_memory_bytes = 16 * kMiB;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 32;
    return config;
  }
  [[nodiscard]] static MachineFacts machine() { return {8, 1024 * kMiB, {}, {}}; }
  [[nodiscard]] ModelPlan plan(int32_t stage, int32_t num_stages) const {
    return value_or_throw(
        plan_model(config(num_stages), machine(), {}, rank_place(stage, 1, num_stages)));
  }
  [[nodiscard]] std::string refusal(const EngineConfig& config) const {
    const auto plan = plan_model(config, machine());
    return plan ? "" : plan.error().message;
  }

  test::TempDir dir_;
  test::RandomModel model_;
  std::string path_;
};

// Loads each stage and counts the bytes that it reads.
TEST_F(PipelinePlan, AStageReadsItsLayers) {
  const Checkpoint checkpoint =
      value_or_throw(Checkpoint::open(value_or_throw(resolve_model(path_))));
  const DecoderSpec spec = value_or_throw(read_decoder_spec(checkpoint));
  const auto bytes_read = [&](const GroupPlace& stages) {
    DecoderOptions options;
    options.layers = stage_layers(spec.num_layers, stages);
    options.max_num_toks = 8;
    const KvPlan whole = value_or_throw(plan_kv(spec, {}));
    const KvPlan kv = stage_of(whole, options.layers.first, options.layers.last);
    return test::loaded_bytes(checkpoint, spec, kv, options);
  };
  const int64_t embedding = int64_t{model_.vocab_size} * model_.hidden_size * 2;
  const int64_t whole = bytes_read({0, 1});
  const int64_t first = bytes_read({0, 2});
  const int64_t last = bytes_read({1, 2});
  const int64_t repeated = spec.tied_head ? embedding : 0;
  EXPECT_EQ(first + last, whole + repeated);
  EXPECT_EQ(bytes_read({0, 5}) + bytes_read({1, 5}) + bytes_read({2, 5}) + bytes_read({3, 5}) +
                bytes_read({4, 5}),
            whole + repeated);
  EXPECT_EQ(bytes_read({1, 5}), bytes_read({2, 5})) << "a layer each, and nothing else";
  EXPECT_LT(bytes_read({1, 5}), whole / 5);
}

// The first stage embeds with the matrix that the last one has as its head.
TEST_F(PipelinePlan, ATiedHeadIsOnBothEnds) {
  const int64_t untied = plan(0, 3).memory.weights_bytes + plan(2, 3).memory.weights_bytes;
  model_.tied_head = true;
  path_ = model_.write(dir_);
  const int64_t tied = plan(0, 3).memory.weights_bytes + plan(2, 3).memory.weights_bytes;
  EXPECT_NEAR(static_cast<double>(tied), static_cast<double>(untied), 1024);
  EXPECT_LT(plan(0, 1).memory.weights_bytes, tied + plan(1, 3).memory.weights_bytes - 200'000);
}

// Three layers and two: a block of the first stage is larger, and both have as many.
TEST_F(PipelinePlan, StagesHaveEquallyManyBlocksOfTheirLayers) {
  const ModelPlan whole = plan(0, 1);
  const ModelPlan first = plan(0, 2);
  const ModelPlan last = plan(1, 2);
  EXPECT_EQ(first.memory.kv_block_bytes, 3 * whole.memory.kv_block_bytes / 5);
  EXPECT_EQ(last.memory.kv_block_bytes, 2 * whole.memory.kv_block_bytes / 5);
  EXPECT_EQ(first.memory.num_blocks, 16 * kMiB / first.memory.kv_block_bytes);
  EXPECT_EQ(last.memory.num_blocks, first.memory.num_blocks);
  EXPECT_EQ(last.runner.token_pages.num_pages, first.runner.token_pages.num_pages);
  EXPECT_EQ(last.config.max_model_len, first.config.max_model_len);
  EXPECT_EQ(first.runner.max_steps_in_flight, 3);
}

TEST_F(PipelinePlan, OnlyTheLastStageHasLogits) {
  const ModelPlan middle = plan(1, 5);
  const ModelPlan last = plan(4, 5);
  const int64_t logits = int64_t{4} * model_.vocab_size * 4;
  EXPECT_LT(middle.memory.workspace_bytes + logits, last.memory.workspace_bytes);
  EXPECT_LT(middle.memory.weights_bytes, last.memory.weights_bytes);
  EXPECT_GT(middle.memory.comm_bytes, last.memory.comm_bytes) << "a residual stream, and results";
}

TEST_F(PipelinePlan, EveryRankIsListed) {
  const std::vector<ModelPlan> ranks = value_or_throw(plan_ranks(config(2, 2), machine()));
  ASSERT_EQ(ranks.size(), 4U);
  const auto json = nlohmann::json::parse(rank_plans_json(ranks));
  const int32_t first_layers[] = {0, 0, 3, 3};
  const int32_t num_layers[] = {3, 3, 2, 2};
  for (size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(json["ranks"][rank]["rank"], rank);
    EXPECT_EQ(json["ranks"][rank]["first_layer"], first_layers[rank]);
    EXPECT_EQ(json["ranks"][rank]["num_layers"], num_layers[rank]);
    EXPECT_EQ(json["ranks"][rank]["weights_bytes"], ranks[rank].memory.weights_bytes);
    EXPECT_EQ(ranks[rank].memory.num_blocks, ranks[0].memory.num_blocks);
  }
  EXPECT_EQ(json["pipeline_parallel_size"], 2);
  const std::string text = format_rank_plans(ranks);
  EXPECT_NE(text.find("layers 0 to 2\n"), std::string::npos) << text;
  EXPECT_NE(text.find("layers 3 to 4\n"), std::string::npos) << text;
}

TEST_F(PipelinePlan, WhatCannotBeDividedIsRefused) {
  EXPECT_EQ(refusal(config(6)), "pipeline-parallel-size 6 is more than the model's 5 layers");
  EXPECT_EQ(refusal(config(5, 16)),
            "--pipeline-parallel-size: 5 stages of 16 ranks each are 80 ranks; at most 64 are "
            "supported");
  RunnerOptions drafts;
  drafts.max_drafts = 100'000;
  const auto too_many = plan_model(config(2), machine(), drafts);
  ASSERT_FALSE(too_many);
  EXPECT_EQ(too_many.error().message,
            "--max-num-seqs: the results of 4 rows with 100000 drafts each are 1600080 bytes; "
            "stages of a pipeline exchange at most 1310720");
}

}  // namespace
}  // namespace warprow
