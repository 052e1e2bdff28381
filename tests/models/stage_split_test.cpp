// SPDX-License-Identifier: Apache-2.0
#include "models/stage_split.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;

// The first and last layer of each stage.
std::vector<std::pair<int32_t, int32_t>> stages(int32_t num_layers, int32_t num_stages) {
  std::vector<std::pair<int32_t, int32_t>> out;
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    const LayerRange layers = stage_layers(num_layers, {stage, num_stages});
    out.emplace_back(layers.first, layers.last - 1);
  }
  return out;
}

std::vector<int32_t> counts(int32_t num_layers, int32_t num_stages) {
  std::vector<int32_t> out;
  for (const auto& [first, last] : stages(num_layers, num_stages)) {
    out.push_back(last - first + 1);
  }
  return out;
}

TEST(StageSplit, SixteenLayersOverTwoStages) {
  EXPECT_THAT(stages(16, 2), ElementsAre(std::pair(0, 7), std::pair(8, 15)));
  EXPECT_THAT(stages(16, 1), ElementsAre(std::pair(0, 15)));
}

// The last stage has the head besides; the stages before it take what does not come out even.
TEST(StageSplit, TheLastStageHasNoLayerMore) {
  EXPECT_THAT(counts(30, 4), ElementsAre(7, 8, 8, 7));
  EXPECT_THAT(counts(29, 4), ElementsAre(7, 7, 8, 7));
  EXPECT_THAT(counts(31, 4), ElementsAre(8, 8, 8, 7));
  EXPECT_THAT(counts(28, 3), ElementsAre(9, 10, 9));
  EXPECT_THAT(counts(5, 2), ElementsAre(3, 2));
  EXPECT_THAT(counts(3, 3), ElementsAre(1, 1, 1));
}

TEST(StageSplit, StagesCoverAllLayers) {
  for (int32_t num_layers = 1; num_layers <= 40; ++num_layers) {
    for (int32_t num_stages = 1; num_stages <= num_layers; ++num_stages) {
      int32_t next = 0;
      for (const auto& [first, last] : stages(num_layers, num_stages)) {
        ASSERT_EQ(first, next);
        ASSERT_GE(last, first);
        next = last + 1;
      }
      ASSERT_EQ(next, num_layers);
    }
  }
}

TEST(StageSplit, MoreStagesThanLayersAreRefused) {
  DecoderSpec spec;
  spec.num_layers = 2;
  spec.layers.resize(2);
  EXPECT_TRUE(check_stage_split(spec, 2));
  const Result<void> refused = check_stage_split(spec, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message, "pipeline-parallel-size 3 is more than the model's 2 layers");
}

TEST(StageSplit, LayersThatReachBackAreNotDivided) {
  DecoderSpec spec;
  spec.num_layers = 2;
  spec.layers.resize(2);
  spec.layers[1].attention.kv_source = 0;
  EXPECT_TRUE(check_stage_split(spec, 1));
  EXPECT_FALSE(check_stage_split(spec, 2));
  spec.layers[1].attention.kv_source = kOwnKv;
  spec.layers[0].layer_input_size = 8;
  EXPECT_FALSE(check_stage_split(spec, 2));
}

}  // namespace
}  // namespace warprow
