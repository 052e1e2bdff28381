// SPDX-License-Identifier: Apache-2.0
#include "cli/verify/verify.h"

#include "executor/executor_wrapper.h"
#include "tests/support/source_path.h"

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

EngineConfig llama_config() {
  EngineConfig config;
  config.model = test::source_path("tests/golden/tiny/llama_gqa_tied");
  config.load_format = "dummy";  // this model has no tokenizer
  config.device = "cpu";
  config.max_model_len = 200;
  config.max_num_seqs = 16;
  config.max_num_batched_tokens = 96;
  config.kv_cache_memory_bytes = int64_t{4} << 20;
  return config;
}

constexpr VerifyLoad kVerifyLoad = {.num_requests = 12, .max_input_len = 120, .output_len = 24};
// 2 layers x 2 x 16 tokens x 2 heads x 8 x 2 bytes
constexpr VerifySizes kSizes = {.on_gpu = false, .block_bytes = 2048, .max_len = 145};

// Behaves like a kernel whose order of additions depends on the number of rows: the last bit of a logprob differs in
// steps of several rows.
class RowsInTheSums final : public ExecutorWrapper {
 public:
  using ExecutorWrapper::ExecutorWrapper;
  void take_output(ModelRunnerOutput& output) override {
    inner().take_output(output);
    if (output.stats.num_rows > 1) {
      for (TokenLogprobs& entry : output.logprobs) {
        entry.logprob = std::bit_cast<float>(std::bit_cast<uint32_t>(entry.logprob) ^ 1U);
      }
    }
  }
};

VerifyReport report_of(const WrapExecutor& wrap) {
  int64_t num_tokens = 0;
  Result<VerifyReport> report = verify(
      llama_config(),
      kSizes,
      kVerifyLoad,
      [&](const EngineConfig& config) { return load_engine(config, wrap); },
      [&](int64_t so_far) { num_tokens = so_far; });
  EXPECT_TRUE(report) << report.error().message;
  EXPECT_GE(num_tokens, 12 * 12 * 24);
  return report ? *std::move(report) : VerifyReport{};
}

TEST(Verify, EveryPromiseHolds) {
  const VerifyReport report = report_of({});
  EXPECT_TRUE(report.held) << report.text;
  int num_held = 0;
  for (const auto& the : report.json["cases"]) {
    const std::string verdict = the["verdict"];
    EXPECT_TRUE(verdict == "held" || (verdict == "not applicable" && the["case"] == "eager"))
        << report.text;
    num_held += verdict == "held" ? 1 : 0;
  }
  EXPECT_EQ(num_held, static_cast<int>(verify_cases().size()) - 1);
}

TEST(Verify, FindsSumsThatFollowTheRows) {
  const VerifyReport report =
      report_of([](std::unique_ptr<Executor> inner) -> std::unique_ptr<Executor> {
        return std::make_unique<RowsInTheSums>(std::move(inner));
      });
  EXPECT_FALSE(report.held);
  for (const auto& the : report.json["cases"]) {
    const std::string name = the["case"];
    const bool alone = name == "repeat" || name == "eager";
    EXPECT_EQ(the["verdict"] == "differs", !alone) << name;
    if (!alone) {
      EXPECT_NE(std::string(the["first_difference"]).find("logprobs of token"), std::string::npos);
    }
  }
  EXPECT_NE(report.text.find("NOT every promise held"), std::string::npos);
}

TEST(Verify, ADifferenceIsNamed) {
  VerifyAnswer expected;
  expected.tokens = {5, 6, 7};
  expected.reason = FinishReason::kLength;
  VerifyAnswer got = expected;
  EXPECT_EQ(difference(expected, got), "");
  got.tokens[1] = 9;
  EXPECT_EQ(difference(expected, got), "token 1 is 9 instead of 6");
  got.tokens = {5, 6};
  EXPECT_EQ(difference(expected, got), "2 tokens instead of 3");
  got = expected;
  got.error = "no memory";
  EXPECT_EQ(difference(expected, got), "failed: no memory");
}

const std::vector<TokenId>& tokens_of(const GenerationRequest& request) {
  return std::get<std::vector<TokenId>>(request.prompt);
}

TEST(Verify, TheLoadIsTheSameForTheSameSeed) {
  const auto first = draw_requests(kVerifyLoad, 256);
  const auto second = draw_requests(kVerifyLoad, 256);
  const auto other =
      draw_requests({.num_requests = 12, .max_input_len = 120, .output_len = 24, .seed = 2}, 256);
  ASSERT_EQ(first.size(), 12U);
  int num_equal = 0;
  for (size_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(tokens_of(first[i]), tokens_of(second[i]));
    num_equal += tokens_of(first[i]) == tokens_of(other[i]) ? 1 : 0;
  }
  EXPECT_LT(num_equal, 3);
}

}  // namespace
}  // namespace warprow
