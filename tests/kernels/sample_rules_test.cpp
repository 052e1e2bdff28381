// SPDX-License-Identifier: Apache-2.0
// Runs the checks that every backend's sampler must pass (tests/support/sample_checks.h) on the CPU.
#include "tests/kernels/cpu_harness.h"
#include "tests/support/sample_checks.h"
#include "tests/support/source_path.h"

#include <fstream>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using testing::SampleCase;
using testing::SampleOutcome;
using testing::SampleRow;

std::vector<SampleOutcome> run_on_cpu(const std::vector<SampleRow>& rows, LogprobsMode mode) {
  constexpr int32_t kThreads = 2;
  testing::CpuHarness cpu(kThreads);
  const SampleCase c(rows);
  testing::HostMemory memory;
  SampleArgs a = c.args(memory, mode);
  const int64_t n = c.size();
  std::vector<int32_t> sampled(rows.size(), -77);
  std::vector<int32_t> error(rows.size(), -77);
  std::vector<int32_t> rank(rows.size(), -77);
  std::vector<float> logprob(rows.size(), -77.0F);
  std::vector<int32_t> top_ids(rows.size() * SampleCase::kMaxTop, -77);
  std::vector<float> top(top_ids.size(), -77.0F);
  std::vector<std::byte> scratch(cpu::sample_scratch_bytes(c.vocab(), kThreads), std::byte{0xa5});
  a.sampled = make_view(sampled.data(), n);
  a.error = make_view(error.data(), n);
  a.rank = make_view(rank.data(), n);
  a.logprob = make_view(logprob.data(), n);
  a.top_ids = make_view(top_ids.data(), n, SampleCase::kMaxTop);
  a.top_logprobs = make_view(top.data(), n, SampleCase::kMaxTop);
  a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
  sample(*cpu.stream, a);
  return testing::outcomes(a,
                           [](const auto* p, int64_t count) { return std::vector(p, p + count); });
}

TEST(SampleRules, EveryPairOfRulesIsTheReferencePipeline) {
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    testing::expect_rules_are_the_reference(run_on_cpu, 1500, 12);
    testing::expect_rules_are_the_reference(run_on_cpu, 300, 150);
  }
}

TEST(SampleRules, WorkedExamples) { testing::expect_worked_examples(run_on_cpu); }
TEST(SampleRules, TokenExamples) { testing::expect_token_examples(run_on_cpu); }
TEST(SampleRules, TemperatureExamples) { testing::expect_temperature_examples(run_on_cpu); }
TEST(SampleRules, BadRowsFailAlone) { testing::expect_bad_rows_fail_alone(run_on_cpu); }
TEST(SampleRules, RowsAreTheirOwn) { testing::expect_rows_are_their_own(run_on_cpu); }
TEST(SampleRules, Distributions) { testing::expect_distributions(run_on_cpu); }

// The kept tokens and scores must equal those of transformers' logits processors on the same logits.
TEST(SampleRules, LeaveWhatTransformersLeaves) {
  std::ifstream file(test::source_path("tests/golden/transformers_sampling.json"));
  const auto golden = nlohmann::json::parse(file);
  ASSERT_GE(golden["cases"].size(), 50U);
  size_t num_taken_out = 0;
  for (const auto& one : golden["cases"]) {
    SCOPED_TRACE(one["params"].dump());
    const auto& params = one["params"];
    SampleRow row = testing::plain_row(one["logits"].get<std::vector<float>>());
    row.tokens = one["tokens"].get<std::vector<int32_t>>();
    row.prompt_len = row.prefill_len = static_cast<int32_t>(row.tokens.size());
    row.params.temperature = params.value("temperature", 1.0F);
    row.params.repetition_penalty = params.value("repetition_penalty", 1.0F);
    row.params.top_k = params.value("top_k", 0);
    row.params.top_p = params.value("top_p", 1.0F);
    row.params.min_p = params.value("min_p", 0.0F);
    std::vector<float> got;
    for (int32_t first = 0; first < 32; first += 16) {  // num_logprobs columns hold 16 at a time
      row.logprob_ids.resize(16);
      std::iota(row.logprob_ids.begin(), row.logprob_ids.end(), first);
      for (const auto& [id, x] :
           testing::run_one(run_on_cpu, row, LogprobsMode::kProcessedLogits).top) {
        got.push_back(x);
      }
    }
    ASSERT_EQ(got.size(), one["scores"].size());
    for (size_t id = 0; id < got.size(); ++id) {
      const auto& score = one["scores"][id];
      ASSERT_EQ(got[id] == testing::kMinusInf, score.is_null()) << "token " << id;
      num_taken_out += score.is_null() ? 1 : 0;
      if (!score.is_null()) {
        EXPECT_FLOAT_EQ(got[id], score.get<float>()) << "token " << id;
      }
    }
  }
  EXPECT_GT(num_taken_out, golden["cases"].size());
}

}  // namespace
}  // namespace warprow
