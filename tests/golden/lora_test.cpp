// SPDX-License-Identifier: Apache-2.0
// LoRA adapters on CPUs: also of models that ranks divide, and of quantised ones. The ranks are threads of this process.
#include "tests/support/lora_cases.h"
#include "tests/support/quantised_model.h"

#include <string>

#include <gtest/gtest.h>

namespace warprow::test {
namespace {

INSTANTIATE_TEST_SUITE_P(Cpu, Lora, ::testing::Values("cpu"));

// Four query heads and two key-value heads: with four ranks each key-value head is on two of them.
TEST(DividedLora, TensorParallelRanksEqualMergedWeights) {
  for (const int32_t ranks : {2, 4}) {
    SCOPED_TRACE(ranks);
    expect_merged(small_model(), "cpu", {ranks, 1});
  }
}

TEST(DividedLora, BiasesAndNorms) {
  expect_merged(small_model("qwen2"), "cpu", {4, 1});
  expect_merged(small_model("qwen3"), "cpu", {2, 1});
}

TEST(DividedLora, StagesEqualMergedWeights) {
  expect_merged(small_model(), "cpu", {1, 2});
  expect_merged(small_model(), "cpu", {2, 2});
}

TEST(DividedLora, RowsHaveTheSameBitsInABatch) {
  expect_same_bits_in_a_batch("cpu", {2, 1});
  expect_same_bits_in_a_batch("cpu", {1, 2});
}

// The ranks' sums are those of whole products: no operation between ranks is added.
TEST(DividedLora, AddsNoOperationBetweenRanks) {
  const RandomModel model = small_model();
  const TempDir dir;
  const std::string base = model.write(dir);
  const auto sums = [&](bool adapters) {
    RigOptions options = divided(with_lora(options_of(base, "cpu")), {2, 1});
    options.config.async_scheduling = false;
    options.config.cudagraph_mode = "none";
    ModelRig rig(options);
    load_all(rig, dir, model);
    for (Request request : requests_of(model, 8)) {
      request.adapter = adapters ? request.adapter : -1;
      rig.add(request);
    }
    rig.run();
    return rig.ranks().counts(0);
  };
  const CommCounts with = sums(true);
  const CommCounts without = sums(false);
  EXPECT_GT(with.all_reduces, 0);
  EXPECT_EQ(with, without);
}

class QuantisedLora : public ::testing::TestWithParam<const char*> {};

// Against the dequantised weights with the adapter merged into them.
TEST_P(QuantisedLora, EqualsMergedDequantisedWeights) {
  for (const LoraRanks ranks : {LoraRanks{1, 1}, LoraRanks{2, 1}}) {
    SCOPED_TRACE(ranks.tensor);
    RandomModel model = small_model();
    model.hidden_size = 256;
    model.intermediate_size = 256;
    const TempDir dir;
    const TempDir quantised;
    const TempDir twin;
    const auto [base, values] = QuantisedModel{model, GetParam(), 32}.write(quantised, twin);
    expect_merged(model, "cpu", ranks, dir, base, values, 2e-4);
  }
}

TEST_P(QuantisedLora, RowsHaveTheSameBitsInABatch) {
  const RandomModel model = small_model();
  const TempDir quantised;
  const TempDir twin;
  const std::string base = QuantisedModel{model, GetParam()}.write(quantised, twin).first;
  expect_same_bits_in_a_batch(model, base, "cpu", {}, {"auto"});
}

INSTANTIATE_TEST_SUITE_P(
    Schemes,
    QuantisedLora,
    ::testing::Values("fp8_block", "fp8_channel", "int8_channel", "pack4", "pack4_zeros", "awq"),
    [](const auto& scheme) { return std::string(scheme.param); });

}  // namespace
}  // namespace warprow::test
