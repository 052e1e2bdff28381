// SPDX-License-Identifier: Apache-2.0
// What one of several ranks takes: its part of the weights, read as such from the files, and its own heads' cache.
#include "files/model_files.h"
#include "models/layer_needs.h"
#include "models/registry.h"
#include "models/tensor_split.h"
#include "tests/support/mib.h"
#include "tests/support/random_model.h"
#include "tests/support/temp_dir.h"
#include "tests/worker/loaded_bytes.h"
#include "worker/model_plan.h"
#include "worker/rank_plans.h"
#include "worker/rank_terms.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using test::kMiB;

class TensorParallelPlan : public ::testing::Test {
 protected:
  TensorParallelPlan() : path_(model_.write(dir_)) {}

  [[nodiscard]] EngineConfig config(int32_t num_ranks) const {
    EngineConfig config;
    config.model = path_;
    config.device = "cpu";
    config.tensor_parallel_size = num_ranks;
    config.kv_cache_memory_bytes = 16 * kMiB;
    config.max_num_seqs = 4;
    config.max_num_batched_tokens = 32;
    return config;
  }
  [[nodiscard]] static MachineFacts machine() { return {8, 1024 * kMiB, {}, {}}; }
  [[nodiscard]] ModelPlan plan(int32_t rank, int32_t num_ranks) const {
    return value_or_throw(
        plan_model(config(num_ranks), machine(), {}, rank_place(rank, num_ranks, 1)));
  }
  // What every rank has besides its part: norms as floats, rope frequencies, copies of key-value heads; and of each
  // tensor up to an arena's alignment.
  [[nodiscard]] int64_t replicated_bytes(int32_t num_ranks) const {
    const int64_t norms = (2 * model_.num_layers + 1) * model_.hidden_size * 4;
    const int64_t ropes = model_.head_dim / 2 * 4;
    const int64_t kv_head = int64_t{model_.head_dim} * model_.hidden_size * 2;
    const int64_t kv_heads =
        2 * kv_head * model_.num_layers;  // one of K and one of V in each layer
    const int64_t copies = num_ranks > model_.num_kv_heads ? kv_heads : 0;
    const int64_t num_tensors = 9 * model_.num_layers + 4;
    return norms + ropes + copies + num_tensors * int64_t{Arena::kAlignment};
  }

  test::TempDir dir_;
  test::RandomModel model_;
  std::string path_;
};

TEST_F(TensorParallelPlan, WeightsAreDivided) {
  const int64_t whole = plan(0, 1).memory.weights_bytes;
  for (const int32_t num_ranks : {2, 4}) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      const int64_t mine = plan(rank, num_ranks).memory.weights_bytes;
      EXPECT_LE(mine, whole / num_ranks + replicated_bytes(num_ranks)) << rank;
      EXPECT_GE(mine, whole / num_ranks) << rank;
    }
  }
}

// Loads each rank's part and counts the bytes that it reads.
TEST_F(TensorParallelPlan, ARankReadsItsPart) {
  const Checkpoint checkpoint =
      value_or_throw(Checkpoint::open(value_or_throw(resolve_model(path_))));
  const DecoderSpec spec = value_or_throw(read_decoder_spec(checkpoint));
  const auto bytes_read = [&](GroupPlace place) {
    DecoderOptions options;
    options.tensor.place = place;
    options.max_num_toks = 8;
    const KvPlan kv = value_or_throw(plan_kv(rank_spec(spec, place), {}));
    return test::loaded_bytes(checkpoint, spec, kv, options);
  };
  const int64_t whole = bytes_read({0, 1});
  EXPECT_EQ(whole, static_cast<int64_t>(checkpoint.total_bytes()));
  for (const int32_t num_ranks : {2, 4}) {
    for (int32_t rank = 0; rank < num_ranks; ++rank) {
      EXPECT_LE(bytes_read({rank, num_ranks}), whole / num_ranks + replicated_bytes(num_ranks));
    }
  }
}

TEST_F(TensorParallelPlan, ABlockHoldsTheRanksOwnHeads) {
  const int64_t whole = plan(0, 1).memory.kv_block_bytes;
  EXPECT_EQ(plan(1, 2).memory.kv_block_bytes, whole / 2);
  EXPECT_EQ(plan(3, 4).memory.kv_block_bytes, whole / 2) << "a copy of one of two heads";
  EXPECT_EQ(plan(1, 2).kv.num_heads, (std::vector<int32_t>{2}));
}

// A bank has whole matrices A of Q, K, V, gate and up, whole matrices B of O and down, and a rank's part of the others.
TEST_F(TensorParallelPlan, BanksOfAdaptersHaveTheRanksPart) {
  constexpr int32_t kRank = 16;
  constexpr int32_t kLoras = 3;
  const auto state_bytes = [&](int32_t num_ranks) {
    EngineConfig settings = config(num_ranks);
    settings.enable_lora = true;
    settings.max_loras = kLoras;
    settings.max_lora_rank = kRank;
    const ModelPlan with = value_or_throw(plan_model(settings, machine()));
    return with.memory.state_bytes - plan(0, num_ranks).memory.state_bytes;
  };
  const int64_t q = int64_t{model_.num_heads} * model_.head_dim;
  const int64_t kv = int64_t{model_.num_kv_heads} * model_.head_dim;
  const int64_t inner = model_.intermediate_size;
  const int64_t b_of_qkv_and_gate_up = q + 2 * kv + 2 * inner;
  const int64_t a_of_o_and_down = q + inner;
  const int64_t halved = model_.num_layers * kRank * (b_of_qkv_and_gate_up + a_of_o_and_down) / 2;
  EXPECT_EQ(state_bytes(1) - state_bytes(2), kLoras * halved * int64_t{sizeof(float)});
}

TEST_F(TensorParallelPlan, RanksShareAMachine) {
  const ModelPlan mine = plan(1, 2);
  EXPECT_EQ(mine.config.threads, 4);
  EXPECT_EQ(mine.memory.total_bytes, 512 * kMiB);
  EXPECT_GT(mine.memory.comm_bytes, 0);
  EXPECT_NE(format_plan(mine.memory).find("1 of 2; all figures are those of one rank"),
            std::string::npos);
  EXPECT_NE(plan_json(mine.memory).find(R"("tensor_parallel_size":2)"), std::string::npos);
  const ModelPlan alone = plan(0, 1);
  EXPECT_EQ(alone.memory.comm_bytes, 0);
  EXPECT_EQ(plan_json(alone.memory).find("tensor_parallel_size"), std::string::npos);
}

TEST_F(TensorParallelPlan, WithoutAPlaceItIsTheFirstRanks) {
  const ModelPlan first = value_or_throw(plan_model(config(2), machine()));
  EXPECT_EQ(first.place.tensor.rank, 0);
  EXPECT_EQ(first.place.tensor.size, 2);
  EXPECT_EQ(plan_json(first.memory), plan_json(plan(0, 2).memory));
}

TEST_F(TensorParallelPlan, EveryRankIsListed) {
  const std::vector<ModelPlan> ranks = value_or_throw(plan_ranks(config(4), machine()));
  ASSERT_EQ(ranks.size(), 4U);
  const auto json = nlohmann::json::parse(rank_plans_json(ranks));
  for (int32_t rank = 0; rank < 4; ++rank) {
    const MemoryPlan& memory = ranks[static_cast<size_t>(rank)].memory;
    EXPECT_EQ(memory.num_blocks, ranks.front().memory.num_blocks);
    EXPECT_EQ(memory.weights_bytes, plan(rank, 4).memory.weights_bytes);
    EXPECT_EQ(json["ranks"][static_cast<size_t>(rank)]["rank"], rank);
    EXPECT_EQ(json["ranks"][static_cast<size_t>(rank)]["planned_bytes"], memory.planned_bytes());
  }
  EXPECT_NE(format_rank_plans(ranks).find("rank 3 "), std::string::npos);
  const std::vector<ModelPlan> alone = value_or_throw(plan_ranks(config(1), machine()));
  EXPECT_EQ(format_rank_plans(alone), format_plan(alone.front().memory));
  EXPECT_EQ(rank_plans_json(alone), plan_json(alone.front().memory));
}

TEST_F(TensorParallelPlan, WhatCannotBeDividedIsRefused) {
  const auto uneven = plan_model(config(3), machine());
  ASSERT_FALSE(uneven);
  EXPECT_EQ(uneven.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(uneven.error().message,
            "layer 0: num_attention_heads 4 is no multiple of tensor-parallel-size 3");
}

TEST(RankTermsText, SurvivesTheExchange) {
  const RankTerms terms{17, 4096, 9};
  EXPECT_EQ(decode_terms(encode(terms)), terms);
  const RankTerms offers[] = {{17, 4096, 9}, {18, 4000, 12}};
  EXPECT_EQ(agree(offers), (RankTerms{17, 4000, 9}));
}

}  // namespace
}  // namespace warprow
