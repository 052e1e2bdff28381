// SPDX-License-Identifier: Apache-2.0
// The sampler on CUDA through what every backend must do (tests/support/sample_checks.h), and
// reports on given tokens against the CPU's.
#include "tests/cuda/cuda_test.h"
#include "tests/support/sample_checks.h"

#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::RunSample;
using test::SampleBatch;
using test::SampleOutcome;
using test::SampleRow;

class SampleRulesCuda : public testing::CudaTest {
 protected:
  // Which rules the batch is said to need: all of them, or those it has.
  enum class Said : uint8_t { kAll, kNeeded };

  static uint32_t needed(const std::vector<SampleRow>& rows) {
    uint32_t rules = 0;
    for (const SampleRow& row : rows) {
      rules |= test::rules_of(row.params);
      rules |= row.logprob_ids.empty() ? 0U : kSampleLogprobs;
      const bool lists = !row.allowed.empty() || !row.biases.empty() || !row.bad_words.empty();
      rules |= lists ? kSampleTokenLists : 0U;
    }
    return rules;
  }

  void set_outputs(SampleArgs& a, int64_t columns) {
    const int64_t n = a.logits.shape[0];
    const auto rows = static_cast<size_t>(n);
    const auto cells = static_cast<size_t>(n * columns);
    a.sampled = make_view(poisoned<int32_t>(rows), n);
    a.error = make_view(poisoned<int32_t>(rows), n);
    a.rank = make_view(poisoned<int32_t>(rows), n);
    a.logprob = make_view(poisoned<float>(rows), n);
    a.top_ids = make_view(poisoned<int32_t>(cells), n, columns);
    a.top_logprobs = make_view(poisoned<float>(cells), n, columns);
    const size_t bytes = sample_scratch_bytes(DeviceKind::kCuda, a.logits.shape[1], n, 1);
    a.scratch = make_view(poisoned<std::byte>(bytes), static_cast<int64_t>(bytes));
  }

  std::vector<SampleOutcome> read(const SampleArgs& a) {
    return test::outcomes(a, [this](const auto* p, int64_t n) {
      using T = std::remove_const_t<std::remove_pointer_t<decltype(p)>>;
      return download(const_cast<T*>(p), static_cast<size_t>(n));
    });
  }

  RunSample runner(Said said = Said::kAll) {
    return [this, said](const std::vector<SampleRow>& rows, LogprobsMode mode) {
      arena().reset();
      const SampleBatch batch(rows);
      SampleArgs a = batch.inputs(mode, [this](const auto& v) { return upload(v); });
      a.rules = said == Said::kAll ? kAllSampleRules : needed(rows);
      set_outputs(a, SampleBatch::kMaxTop);
      sample(stream(), a);
      return read(a);
    };
  }
};

TEST_F(SampleRulesCuda, EveryPairOfRulesIsTheReferencePipeline) {
  for (const Said said : {Said::kAll, Said::kNeeded}) {
    test::expect_rules_are_the_reference(runner(said), 1500, 12);
    test::expect_rules_are_the_reference(runner(said), 300, 150);
    test::expect_rules_are_the_reference(runner(said), 40, 20000);
  }
}

// Batches of one row are said to need what that row does, and no more.
TEST_F(SampleRulesCuda, RowsAlone) { test::expect_rows_are_their_own(runner(Said::kNeeded)); }
TEST_F(SampleRulesCuda, WorkedExamples) { test::expect_worked_examples(runner()); }
TEST_F(SampleRulesCuda, WorkedExamplesWithTheirRulesAlone) {
  test::expect_worked_examples(runner(Said::kNeeded));
}
TEST_F(SampleRulesCuda, TokenExamples) { test::expect_token_examples(runner(Said::kNeeded)); }
TEST_F(SampleRulesCuda, TemperatureExamples) { test::expect_temperature_examples(runner()); }
TEST_F(SampleRulesCuda, BadRowsFailAlone) { test::expect_bad_rows_fail_alone(runner()); }
TEST_F(SampleRulesCuda, Distributions) { test::expect_distributions(runner()); }

// Lists as long as a row can have, over several tiles.
TEST_F(SampleRulesCuda, LongLists) {
  constexpr int32_t kVocab = 30000;
  SampleRow row = test::plain_row(std::vector<float>(kVocab, 0.0F));
  for (int32_t id = 0; id < kVocab; ++id) {
    row.logits[static_cast<size_t>(id)] = static_cast<float>((id * 7919) % 10007) * 1e-3F;
  }
  for (int32_t i = 0; i < 40; ++i) {
    row.allowed.insert(i * 743);
    row.biases[i * 743] = static_cast<float>(i % 5) - 2.0F;
    if (i % 3 == 0) {
      row.bad_words.push_back({i * 743});
    }
  }
  for (const int32_t num_logprobs : {-1, 20}) {
    row.params.num_logprobs = num_logprobs;
    for (const float temperature : {0.0F, 0.9F}) {
      row.params.temperature = temperature;
      const auto mode = LogprobsMode::kProcessedLogprobs;
      test::expect_same(test::reference_outcome(row, mode),
                        test::run_one(runner(Said::kNeeded), row, mode));
    }
  }
}

TEST_F(SampleRulesCuda, ReportsOnGivenTokens) {
  constexpr int64_t kTop = 20;
  for (const int32_t vocab : {7, 5000, 151936}) {
    for (const LogprobsMode mode : {LogprobsMode::kRawLogprobs, LogprobsMode::kRawLogits}) {
      arena().reset();
      std::vector<SampleRow> rows = test::RandomRows(3).rows(9, vocab);
      std::vector<int32_t> given;
      for (SampleRow& row : rows) {
        given.push_back(static_cast<int32_t>(given.size()) * (vocab / 9));
        row.params = {};
        row.params.num_logprobs = 5;
        row.logprob_ids.clear();
      }
      rows[4].logits[2] = std::nanf("");
      const SampleBatch batch(rows);
      const SampleArgs all = batch.inputs(mode, [this](const auto& v) { return upload(v); });
      SampleArgs a;
      a.logits = all.logits;
      a.given = make_view<const int32_t>(upload(given), batch.size());
      a.num_given_top = 5;
      a.rules = kSampleLogprobs;
      a.logprobs_mode = mode;
      set_outputs(a, kTop);
      sample(stream(), a);
      const std::vector<SampleOutcome> got = read(a);
      for (size_t i = 0; i < rows.size(); ++i) {
        SCOPED_TRACE(i);
        if (i == 4) {
          EXPECT_LT(got[i].token, 0);
          EXPECT_EQ(got[i].rank, 0);
          continue;
        }
        SampleOutcome want;
        want.token = given[i];
        test::add_logprobs(rows[i], rows[i].logits, is_logits(mode), want);
        test::expect_same(want, got[i]);
      }
    }
  }
}

}  // namespace
}  // namespace warprow
