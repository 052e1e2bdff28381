// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/rules/penalties.h"

#include "tests/kernels/cpu_harness.h"
#include "tests/kernels/token_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::draw;
using testing::Drawn;
using testing::kInf;
using testing::random_floats;
using testing::TokenRows;

SampleParams penalties(float repetition, float frequency, float presence) {
  SampleParams p;
  p.repetition_penalty = repetition;
  p.frequency_penalty = frequency;
  p.presence_penalty = presence;
  return p;
}

std::vector<float> apply(const KnownTokens& tokens, const SampleParams& p, std::vector<float> x) {
  std::vector<int32_t> counts(x.size(), 12345);
  cpu::apply_penalties(tokens, p, x.data(), static_cast<int32_t>(x.size()), counts.data());
  return x;
}

TEST(Penalties, WorkedExample) {
  // Token 0 occurs in the prompt only, 1 twice in the output, 2 nowhere, 3 in both.
  TokenRows rows(2);
  rows.add({0, 3, 1, 3, 1}, 2, 2);
  rows.add({0, 3, 1, 3, 1}, 2, 4);  // resumed after two outputs
  for (const size_t row : {0U, 1U}) {
    EXPECT_EQ(apply(rows.tokens(row), penalties(2.0F, 0.5F, 0.25F), {2.0F, -1.0F, 0.5F, 2.0F}),
              (std::vector<float>{1.0F, -3.25F, 0.5F, 0.25F}));
  }
}

// The definition in double, with sets and counts.
std::vector<double> penalties_reference(const std::vector<int32_t>& tokens,
                                        int32_t prompt_len,
                                        const SampleParams& p,
                                        const std::vector<float>& logits) {
  std::vector<double> x(logits.begin(), logits.end());
  for (const int32_t id : std::set<int32_t>(tokens.begin(), tokens.end())) {
    const auto count = std::count(tokens.begin() + prompt_len, tokens.end(), id);
    double& l = x[static_cast<size_t>(id)];
    l = l > 0 ? l / p.repetition_penalty : l * p.repetition_penalty;
    l -= static_cast<double>(p.frequency_penalty) * static_cast<double>(count);
    l -= count > 0 ? p.presence_penalty : 0.0F;
  }
  return x;
}

struct RandomRows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<SampleParams> params;
  TokenRows rows;

  RandomRows(int32_t n, int32_t vocab, uint32_t seed) : rows(n) {
    std::mt19937 random(seed);
    const auto below = [&](int32_t limit) {
      return static_cast<int32_t>(random() % static_cast<uint32_t>(limit));
    };
    const auto pick = [&](std::vector<float> values) {
      return values[static_cast<size_t>(below(static_cast<int32_t>(values.size())))];
    };
    for (int32_t i = 0; i < n; ++i) {
      tokens.emplace_back(static_cast<size_t>(1 + below(TokenRows::kMaxLen)));
      for (int32_t& id : tokens.back()) {
        id = below(vocab);
      }
      const auto len = static_cast<int32_t>(tokens.back().size());
      const int32_t prompt = 1 + below(len);
      rows.add(tokens.back(), prompt, prompt + below(len - prompt + 1));
      params.push_back(penalties(
          pick({1, 0.5F, 1.3F, 7}), pick({0, 0.7F, -1.1F, 2}), pick({0, 1.5F, -2, 0.3F})));
    }
  }
};

TEST(Penalties, AgreeWithTheirDefinition) {
  constexpr int32_t kVocab = 50;
  const RandomRows random(400, kVocab, 3);
  for (size_t i = 0; i < random.tokens.size(); ++i) {
    auto logits = random_floats(kVocab, static_cast<uint32_t>(i), 5.0F);
    logits[i % kVocab] = -kInf;
    const auto expected =
        penalties_reference(random.tokens[i], random.rows.prompt_len[i], random.params[i], logits);
    const auto got = apply(random.rows.tokens(i), random.params[i], logits);
    for (size_t t = 0; t < kVocab; ++t) {
      if (logits[t] == -kInf) {
        EXPECT_EQ(got[t], -kInf);
      } else {
        ASSERT_NEAR(got[t], expected[t], 1e-5 * (1.0 + std::abs(expected[t]))) << i << " " << t;
      }
    }
  }
}

TEST(Penalties, IdsOutsideTheVocabularyAreSkipped) {
  TokenRows rows(1);
  rows.add({1, -1, 4, 1}, 1, 1);
  EXPECT_EQ(apply(rows.tokens(0), penalties(1, 1, 0), {3, 3, 3}), (std::vector<float>{3, 2, 3}));
}

// Sampling with penalties must equal sampling without penalties from logits that were penalised beforehand: greedy and
// random, under any other rules.
TEST(Penalties, SamplerDrawsFromPenalisedLogits) {
  constexpr int32_t kVocab = 300;
  RandomRows random(120, kVocab, 9);
  std::vector<float> logits;
  std::vector<float> penalised;
  std::vector<SampleParams> plain;
  for (size_t i = 0; i < random.tokens.size(); ++i) {
    SampleParams& p = random.params[i];
    p.temperature = 0.4F * static_cast<float>(i % 4);
    p.top_k = i % 3 == 0 ? 20 : 0;
    p.top_p = i % 5 == 0 ? 0.8F : 1.0F;
    p.seed = i;
    plain.push_back(p);
    plain.back().repetition_penalty = 1.0F;
    plain.back().frequency_penalty = plain.back().presence_penalty = 0.0F;
    const auto x = random_floats(kVocab, static_cast<uint32_t>(i), 2.0F);
    const auto y = apply(random.rows.tokens(i), p, x);
    logits.insert(logits.end(), x.begin(), x.end());
    penalised.insert(penalised.end(), y.begin(), y.end());
  }
  const auto& len = random.rows.len;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    const auto got = draw(random.rows.view(), random.params, len, logits, 2).tokens;
    EXPECT_EQ(got, draw({}, plain, len, penalised).tokens) << cpu_isa_name(isa);
    EXPECT_NE(got, draw({}, plain, len, logits).tokens) << "the penalties changed nothing";
  }
}

TEST(Penalties, LogprobsStayThoseOfTheRawLogits) {
  TokenRows rows(1);
  rows.add({0, 2}, 1, 1);
  SampleParams p = penalties(1, 0, 2);
  p.num_logprobs = 0;
  const Drawn drawn = draw(rows.view(), {p}, rows.len, {0.0F, 0.0F, std::log(2.0F)});
  EXPECT_EQ(drawn.tokens[0], 0);
  EXPECT_NEAR(drawn.logprobs[0], std::log(0.25), 1e-6);
  EXPECT_EQ(drawn.ranks[0], 3);
}

// A penalty that makes logits overflow ends only its own request.
TEST(Penalties, OverflowFailsItsRowAlone) {
  TokenRows rows(2);
  rows.add({0, 1}, 2, 2);
  rows.add({0, 1}, 2, 2);
  const Drawn drawn = draw(rows.view(),
                           {penalties(std::numeric_limits<float>::min(), 0, 0), penalties(2, 0, 0)},
                           rows.len,
                           {9.0F, 1.0F, 8.0F, 9.0F, 1.0F, 8.0F});
  EXPECT_EQ(drawn.tokens, (std::vector<int32_t>{-1, 2}));
  EXPECT_EQ(drawn.errors, (std::vector<int32_t>{1, 0}));
}

}  // namespace
}  // namespace warprow
