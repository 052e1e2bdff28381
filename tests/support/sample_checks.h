// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "tests/support/sample_case.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

// Checks that every backend's sampler must pass.
namespace warprow::testing {

inline constexpr LogprobsMode kAllModes[] = {LogprobsMode::kRawLogprobs,
                                             LogprobsMode::kRawLogits,
                                             LogprobsMode::kProcessedLogprobs,
                                             LogprobsMode::kProcessedLogits};

inline bool close_enough(float want, float got) {
  return want == got || std::abs(want - got) <= 1e-5F + 2e-6F * std::abs(want);
}

inline void expect_same(const SampleOutcome& want, const SampleOutcome& got) {
  ASSERT_EQ(want.token, got.token);
  EXPECT_EQ(want.error, got.error);
  EXPECT_EQ(want.rank, got.rank);
  EXPECT_TRUE(close_enough(want.logprob, got.logprob)) << want.logprob << " and " << got.logprob;
  ASSERT_EQ(want.top.size(), got.top.size());
  for (size_t c = 0; c < want.top.size(); ++c) {
    EXPECT_EQ(want.top[c].first, got.top[c].first) << "column " << c;
    EXPECT_TRUE(close_enough(want.top[c].second, got.top[c].second))
        << "column " << c << ": " << want.top[c].second << " and " << got.top[c].second;
  }
}

// Random rows. Each rule applies to about half of them, so every pair of rules occurs often.
class RandomRows {
 public:
  explicit RandomRows(uint32_t seed) : random_(seed) {}

  std::vector<SampleRow> rows(int32_t n, int32_t vocab) {
    std::vector<SampleRow> out;
    out.reserve(static_cast<size_t>(n));
    for (int32_t i = 0; i < n; ++i) {
      out.push_back(row(vocab));
    }
    return out;
  }

 private:
  int32_t below(int32_t limit) {
    return static_cast<int32_t>(random_() % static_cast<uint32_t>(limit));
  }
  bool half() { return below(2) == 0; }
  int32_t few(int32_t limit) { return half() ? 0 : 1 + below(limit); }

  SampleRow row(int32_t vocab) {
    SampleRow row;
    std::normal_distribution<float> normal(0.0F, 3.0F);
    for (int32_t i = 0; i < vocab; ++i) {
      row.logits.push_back(normal(random_));
    }
    // Few distinct tokens, so that they repeat and bad words match.
    row.tokens.assign(size_t{1} + static_cast<size_t>(below(30)), 0);
    std::generate(row.tokens.begin(), row.tokens.end(), [&] { return below(std::min(vocab, 4)); });
    const auto len = static_cast<int32_t>(row.tokens.size());
    row.prompt_len = 1 + below(len);
    row.prefill_len = row.prompt_len + below(len - row.prompt_len + 1);
    for (int32_t n = few(vocab); n > 0; --n) {
      row.allowed.insert(below(vocab));
    }
    for (int32_t n = few(5); n > 0; --n) {
      row.biases[below(vocab)] = 0.5F * static_cast<float>(below(21) - 10);
    }
    for (int32_t n = few(5); n > 0; --n) {
      std::vector<int32_t> word(static_cast<size_t>(below(3)));
      std::generate(word.begin(), word.end(), [&] { return below(4); });
      word.push_back(below(vocab));
      row.bad_words.push_back(word);
    }
    for (int32_t n = few(3); n > 0; --n) {
      row.stop_ids.push_back(below(vocab));
    }
    set_params(row.params, vocab);
    if (row.params.num_logprobs >= 0) {
      for (int32_t n = few(4); n > 0; --n) {
        row.logprob_ids.push_back(below(vocab));
      }
    }
    return row;
  }

  void set_params(SampleParams& p, int32_t vocab) {
    p.temperature = half() ? 0.0F : 0.25F + 0.01F * static_cast<float>(below(150));
    p.top_k = few(vocab + 3);
    p.top_p = half() ? 1.0F : 0.01F * static_cast<float>(1 + below(99));
    p.min_p = half() ? 0.0F : 0.01F * static_cast<float>(below(60));
    p.seed = random_();
    p.min_tokens = half() ? 0 : below(20);
    p.repetition_penalty = half() ? 1.0F : 0.5F + 0.01F * static_cast<float>(below(150));
    p.frequency_penalty = half() ? 0.0F : 0.01F * static_cast<float>(below(400) - 200);
    p.presence_penalty = half() ? 0.0F : 0.01F * static_cast<float>(below(400) - 200);
    p.num_logprobs = below(4) == 0 ? -1 : below(21);
  }

  std::mt19937 random_;
};

// Compares thousands of rows under every rule with the reference pipeline.
inline void expect_rules_are_the_reference(const RunSample& run, int32_t num_rows, int32_t vocab) {
  RandomRows make(17);
  int32_t num_nothing_left = 0;
  int32_t num_changed = 0;
  for (const LogprobsMode mode : kAllModes) {
    const std::vector<SampleRow> rows = make.rows(num_rows, vocab);
    const std::vector<SampleOutcome> got = run(rows, mode);
    for (size_t i = 0; i < rows.size(); ++i) {
      SCOPED_TRACE("mode " + std::to_string(static_cast<int>(mode)) + " row " + std::to_string(i));
      const SampleOutcome want = reference_outcome(rows[i], mode);
      expect_same(want, got[i]);
      if (::testing::Test::HasFailure()) {
        return;  // the first differing row is enough output
      }
      num_nothing_left += want.error != 0 ? 1 : 0;
      num_changed += want.token != first_of_largest(rows[i].logits) ? 1 : 0;
    }
  }
  EXPECT_GT(num_nothing_left, vocab < 50 ? num_rows / 100 : -1);
  EXPECT_GT(num_changed, num_rows / 2);
}

// A row of the worked examples: logits and parameters, without tokens.
inline SampleRow plain_row(std::vector<float> logits, float temperature = 0.0F) {
  SampleRow row;
  row.logits = std::move(logits);
  row.params.temperature = temperature;
  row.params.num_logprobs = 0;
  return row;
}

inline SampleOutcome run_one(const RunSample& run, const SampleRow& row, LogprobsMode mode) {
  return run({row}, mode).front();
}

// The processed logits of a row.
inline std::vector<float> processed_by(const RunSample& run, SampleRow row) {
  for (int32_t id = 0; id < static_cast<int32_t>(row.logits.size()); ++id) {
    row.logprob_ids.push_back(id);
  }
  std::vector<float> out;
  for (const auto& [id, x] : run_one(run, row, LogprobsMode::kProcessedLogits).top) {
    out.push_back(x);
  }
  return out;
}

// The worked examples, from the penalties to the ranks.
inline void expect_worked_examples(const RunSample& run) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  // Token 0: only in the prompt. 1: twice in the output. 2: nowhere. 3: in the prompt and once in the output.
  SampleRow penalties = plain_row({2.0F, -1.0F, 0.5F, 2.0F});
  penalties.tokens = {0, 3, 1, 1, 3};
  penalties.prompt_len = penalties.prefill_len = 2;
  penalties.params.repetition_penalty = 2.0F;
  penalties.params.frequency_penalty = 0.5F;
  penalties.params.presence_penalty = 0.25F;
  EXPECT_EQ(processed_by(run, penalties), (std::vector<float>{1.0F, -3.25F, 0.5F, 0.25F}));

  SampleRow min_p = plain_row({2, 1, 0}, 1.0F);
  min_p.params.min_p = 0.3F;
  EXPECT_EQ(processed_by(run, min_p), (std::vector<float>{2, 1, -kInf}));
  min_p.params.temperature = 0.5F;
  EXPECT_EQ(processed_by(run, min_p), (std::vector<float>{4, -kInf, -kInf}));

  std::vector<float> probabilities = {0.4F, 0.3F, 0.2F, 0.1F};
  std::transform(probabilities.begin(), probabilities.end(), probabilities.begin(), [](float p) {
    return std::log(p);
  });
  SampleRow top_p = plain_row(probabilities, 1.0F);
  top_p.params.top_p = 0.65F;
  EXPECT_EQ(processed_by(run, top_p),
            (std::vector<float>{probabilities[0], probabilities[1], -kInf, -kInf}));
  SampleRow top_k = plain_row({3, 3, 3, 1}, 1.0F);
  top_k.params.top_k = 2;
  EXPECT_EQ(processed_by(run, top_k), (std::vector<float>{3, 3, -kInf, -kInf}));

  SampleRow rank = plain_row({1, 3, 3, 0});
  EXPECT_EQ(run_one(run, rank, LogprobsMode::kRawLogprobs).rank, 2);
  SampleRow third = plain_row({0, 0, std::log(2.0F)});
  EXPECT_NEAR(run_one(run, third, LogprobsMode::kRawLogprobs).logprob, -0.6931, 1e-4);
  EXPECT_EQ(run_one(run, third, LogprobsMode::kRawLogits).logprob, std::log(2.0F));

  SampleRow masked = plain_row({1, 2, 9});
  masked.allowed = {0, 1};
  masked.biases = {{2, 100}};
  EXPECT_EQ(processed_by(run, masked), (std::vector<float>{1, 2, -kInf}));
  EXPECT_EQ(run_one(run, masked, LogprobsMode::kRawLogits).token, 1);
  masked.allowed = {2};
  masked.params.min_tokens = 1;
  masked.stop_ids = {2};
  EXPECT_EQ(run_one(run, masked, LogprobsMode::kRawLogprobs).error,
            static_cast<int32_t>(SampleError::kNothingLeft));
}

// Token rules: from which length on EOS may come, bad words across the end of the prompt, the second-best token.
inline void expect_token_examples(const RunSample& run) {
  const auto token_of = [&](const SampleRow& row) {
    return run_one(run, row, LogprobsMode::kRawLogprobs).token;
  };
  SampleRow stop = plain_row({9, 1, 3});
  stop.params.min_tokens = 2;
  stop.stop_ids = {0};
  stop.prompt_len = stop.prefill_len = 5;
  for (size_t num_outputs = 0; num_outputs < 4; ++num_outputs) {  // input positions 4, 5, 6, 7
    stop.tokens.assign(5 + num_outputs, 1);
    EXPECT_EQ(token_of(stop), num_outputs < 2 ? 2 : 0) << num_outputs;
  }
  SampleRow word = plain_row({0, 0, 0, 0, 0, 0, 8, 4});
  word.bad_words = {{5, 6}};
  word.tokens = {1, 5};
  word.prompt_len = word.prefill_len = 2;
  EXPECT_EQ(token_of(word), 6) << "the 5 belongs to the prompt";
  word.tokens = {1, 5, 5};
  EXPECT_EQ(token_of(word), 7);
  SampleRow runner_up = plain_row({1, 3, 9, 2});
  runner_up.bad_words = {{2}};
  EXPECT_EQ(token_of(runner_up), 1);
}

// Temperatures [0, 9e-6, 1e-5, 1] in one batch, and values just around the bounds.
inline void expect_temperature_examples(const RunSample& run) {
  const std::vector<float> logits = {1.0F, 1.2F, 1.1F, 0.9F};
  std::vector<SampleRow> rows;
  for (uint64_t seed = 1; seed <= 64; ++seed) {
    for (const float temperature : {0.0F, 9e-6F, 1e-5F, 1.0F, 0.005F, 0.01F}) {
      rows.push_back(plain_row(logits, temperature));
      rows.back().params.seed = seed;
    }
  }
  const std::vector<SampleOutcome> got = run(rows, LogprobsMode::kRawLogprobs);
  std::set<int32_t> at_one;
  for (size_t i = 0; i < rows.size(); i += 6) {
    EXPECT_EQ(got[i].token, 1) << "greedy does not depend on the seed";
    EXPECT_EQ(got[i + 1].token, 1);
    EXPECT_EQ(got[i + 2].token, got[i + 5].token) << "1e-5 acts as 0.01";
    EXPECT_EQ(got[i + 4].token, got[i + 5].token) << "0.005 acts as 0.01";
    at_one.insert(got[i + 3].token);
    for (size_t t = 0; t < 6; ++t) {
      EXPECT_EQ(got[i + t].error, 0);
      EXPECT_TRUE(std::isfinite(got[i + t].logprob));
    }
  }
  EXPECT_EQ(at_one.size(), 4U);
}

// Rows with NaN or infinite logits among others. Each gets an error, and the other rows' results do not change.
inline void expect_bad_rows_fail_alone(const RunSample& run) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  RandomRows make(5);
  std::vector<SampleRow> rows = make.rows(24, 40);
  for (const LogprobsMode mode : kAllModes) {
    const std::vector<SampleOutcome> alone = run(rows, mode);
    std::vector<SampleRow> broken = rows;
    for (size_t i = 0; i < broken.size(); i += 4) {
      broken[i].logits[i] = i % 3 == 0 ? std::nanf("") : kInf;
    }
    const std::vector<SampleOutcome> got = run(broken, mode);
    for (size_t i = 0; i < broken.size(); ++i) {
      SCOPED_TRACE(i);
      if (i % 4 == 0) {
        EXPECT_EQ(got[i].error, static_cast<int32_t>(SampleError::kBadLogits));
        EXPECT_LT(got[i].token, 0);
      } else {
        expect_same(alone[i], got[i]);
      }
    }
  }
}

// The same rows alone and in a batch of 64 give the same tokens.
inline void expect_rows_are_their_own(const RunSample& run) {
  RandomRows make(9);
  const std::vector<SampleRow> rows = make.rows(64, 100);
  const std::vector<SampleOutcome> together = run(rows, LogprobsMode::kRawLogprobs);
  for (size_t i = 0; i < rows.size(); ++i) {
    SCOPED_TRACE(i);
    const SampleOutcome alone = run_one(run, rows[i], LogprobsMode::kRawLogprobs);
    expect_same(together[i], alone);
    EXPECT_EQ(together[i].logprob, alone.logprob);
  }
}

// Chi-square of 120,000 draws, p > 1e-4, under each rule on the draw.
inline void expect_distributions(const RunSample& run) {
  const auto with = [](float temperature, float min_p, int32_t top_k, float top_p) {
    SampleRow row = plain_row({1.0F, -0.5F, 2.0F, 0.3F, 1.9F, -2.0F, 0.0F, 1.2F}, temperature);
    row.params.min_p = min_p;
    row.params.top_k = top_k;
    row.params.top_p = top_p;
    return row;
  };
  constexpr int32_t kDraws = 120000;
  constexpr int32_t kBatch = 4000;
  for (const SampleRow& row : {with(1.3F, 0.0F, 0, 1.0F),
                               with(0.8F, 0.0F, 5, 1.0F),
                               with(1.0F, 0.0F, 0, 0.8F),
                               with(1.0F, 0.15F, 0, 1.0F)}) {
    std::vector<int32_t> seen(row.logits.size());
    for (int32_t first = 0; first < kDraws; first += kBatch) {
      std::vector<SampleRow> rows(kBatch, row);
      for (size_t i = 0; i < rows.size(); ++i) {
        rows[i].params.seed = static_cast<uint64_t>(first) + i;
      }
      for (const SampleOutcome& outcome : run(rows, LogprobsMode::kRawLogprobs)) {
        ++seen[static_cast<size_t>(outcome.token)];
      }
    }
    const std::vector<float> left = survivors_of(row.logits, row.params);
    double total = 0.0;
    for (const float x : left) {
      total += std::exp(static_cast<double>(x));
    }
    double chi_square = 0.0;
    int32_t freedom = -1;
    for (size_t id = 0; id < left.size(); ++id) {
      const double expected = kDraws * std::exp(static_cast<double>(left[id])) / total;
      if (expected == 0.0) {
        EXPECT_EQ(seen[id], 0);
        continue;
      }
      chi_square += (seen[id] - expected) * (seen[id] - expected) / expected;
      ++freedom;
    }
    // Wilson and Hilferty's approximation of the quantile; 3.72 is the normal one for 1e-4.
    const double ninth = 2.0 / (9.0 * freedom);
    const double limit = freedom * std::pow(1.0 - ninth + 3.72 * std::sqrt(ninth), 3);
    EXPECT_LT(chi_square, limit) << "with " << freedom << " degrees of freedom";
  }
}

}  // namespace warprow::testing
