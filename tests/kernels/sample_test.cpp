// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/sample.h"

#include "kernels/sample/rules/gumbel.h"
#include "kernels/sample/rules/min_p.h"
#include "kernels/sample/rules/temperature.h"
#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::kInf;
using testing::random_floats;

// One call of the sampler: logits, sampling parameters by request row, and outputs.
struct Call {
  int64_t vocab;
  std::vector<float> logits{};
  std::vector<SampleParams> params{};
  std::vector<int32_t> row{};
  std::vector<int32_t> position{};
  int64_t max_top = 20;
  std::vector<int32_t> sampled{}, rank{}, error{}, top_ids{};
  std::vector<float> logprob{}, top_logprobs{};

  void add(const std::vector<float>& x, const SampleParams& p, int32_t pos) {
    logits.insert(logits.end(), x.begin(), x.end());
    row.push_back(static_cast<int32_t>(params.size()));
    params.push_back(p);
    position.push_back(pos);
  }

  void run(int32_t threads = 1) {
    CpuHarness cpu(threads);
    const auto n = static_cast<int64_t>(row.size());
    sampled.assign(row.size(), -7);
    rank.assign(row.size(), -7);
    error.assign(row.size(), -7);
    logprob.assign(row.size(), -7.0F);
    top_ids.assign(static_cast<size_t>(n * max_top), -7);
    top_logprobs.assign(static_cast<size_t>(n * max_top), -7.0F);
    std::vector<std::byte> scratch(cpu::sample_scratch_bytes(vocab, threads));
    const auto before = logits;
    SampleArgs a;
    a.logits = make_view<const float>(logits.data(), n, vocab);
    a.logit_row = make_view<const int32_t>(row.data(), n);
    a.logit_pos = make_view<const int32_t>(position.data(), n);
    a.params = make_view<const SampleParams>(params.data(), static_cast<int64_t>(params.size()));
    a.sampled = make_view(sampled.data(), n);
    a.logprob = make_view(logprob.data(), n);
    a.rank = make_view(rank.data(), n);
    a.top_ids = make_view(top_ids.data(), n, max_top);
    a.top_logprobs = make_view(top_logprobs.data(), n, max_top);
    a.error = make_view(error.data(), n);
    a.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    sample(*cpu.stream, a);
    EXPECT_TRUE(std::equal(before.begin(), before.end(), logits.begin(), [](float was, float is) {
      return was == is || (std::isnan(was) && std::isnan(is));
    })) << "the sampler must not change raw logits";
  }
};

SampleParams with_temperature(float t, uint64_t seed = 1) {
  SampleParams p;
  p.temperature = t;
  p.seed = seed;
  return p;
}

// Tokens that survive min_p, top_k and top_p by definition: sort all tokens, then cut.
std::vector<int32_t> reference_survivors(std::vector<float> x, const SampleParams& p) {
  for (float& v : x) {
    v /= effective_temperature(p.temperature);
  }
  const float max = *std::max_element(x.begin(), x.end());
  std::vector<int32_t> ids(x.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::erase_if(ids, [&](int32_t i) { return x[i] == -kInf; });
  if (p.min_p > 0.0F) {
    std::erase_if(ids, [&](int32_t i) { return x[i] < min_p_threshold(max, p.min_p); });
  }
  std::sort(ids.begin(), ids.end(), [&](int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
  });
  if (p.top_k > 0 && static_cast<size_t>(p.top_k) < ids.size()) {
    ids.resize(static_cast<size_t>(p.top_k));
  }
  if (p.top_p < 1.0F) {
    double total = 0.0;
    for (const int32_t i : ids) {
      total += std::exp(static_cast<double>(x[i]) - max);
    }
    double mass = 0.0;
    size_t kept = 0;
    while (kept < ids.size() && (kept == 0 || mass < p.top_p * total)) {
      mass += std::exp(static_cast<double>(x[ids[kept++]]) - max);
    }
    ids.resize(kept);
  }
  return ids;
}

int32_t reference_sample(const std::vector<float>& logits,
                         const SampleParams& p,
                         int32_t position) {
  if (is_greedy(p.temperature)) {
    return static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
  int32_t best_id = -1;
  double best = 0.0;
  for (const int32_t id : reference_survivors(logits, p)) {
    const double score =
        gumbel_score(logits[id] / effective_temperature(p.temperature),
                     {p.seed, static_cast<uint32_t>(position), RandomPurpose::kSample},
                     id);
    if (best_id < 0 || score > best || (score == best && id < best_id)) {
      best = score;
      best_id = id;
    }
  }
  return best_id;
}

TEST(Sample, GreedyTakesTheFirstOfTheLargest) {
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    Call call{.vocab = 200};
    std::vector<float> x(200, -1.0F);
    x[77] = x[150] = x[199] = 3.0F;
    call.add(x, with_temperature(0.0F, 1), 0);
    call.add(x, with_temperature(9e-6F, 2), 3);
    std::vector<float> masked(200, -kInf);
    masked[199] = -100.0F;
    call.add(masked, with_temperature(0.0F), 0);
    call.add(masked, with_temperature(1.0F), 0);
    call.run();
    EXPECT_EQ(call.sampled, (std::vector<int32_t>{77, 77, 199, 199}));
    EXPECT_EQ(call.error, std::vector<int32_t>(4, 0));
    EXPECT_EQ(call.rank, std::vector<int32_t>(4, 0)) << "no logprobs were requested";
  }
}

// Temperatures [0, 9e-6, 1e-5, 1] in one batch: two argmax, two random, no NaN. Values below 0.01 act as 0.01.
TEST(Sample, SmallTemperatures) {
  Call call{.vocab = 64};
  std::vector<float> x(64, 0.0F);
  x[5] = 1e-3F;  // at 0.01 the odds are only e^0.1 to 1
  for (const uint64_t seed : {3U, 4U, 5U, 6U, 7U, 8U, 9U, 10U}) {
    for (const float t : {0.0F, 9e-6F, 1e-5F, 0.005F, 0.01F}) {
      call.add(x, with_temperature(t, seed), 1);
    }
  }
  call.run();
  int different = 0;
  for (size_t i = 0; i < call.sampled.size(); i += 5) {
    EXPECT_EQ(call.sampled[i], 5);
    EXPECT_EQ(call.sampled[i + 1], 5);
    EXPECT_EQ(call.sampled[i + 2], call.sampled[i + 4]);
    EXPECT_EQ(call.sampled[i + 3], call.sampled[i + 4]);
    different += call.sampled[i + 4] != 5 ? 1 : 0;
  }
  EXPECT_GT(different, 4);
}

struct RuleCase {
  float temperature, top_p, min_p;
  int32_t top_k;
};

std::vector<RuleCase> rule_cases() {
  std::vector<RuleCase> cases;
  for (const float t : {1.0F, 0.3F, 1.7F, 10.0F}) {
    for (const float top_p : {1.0F, 0.9F, 0.3F, 0.999F, 1e-6F}) {
      for (const float min_p : {0.0F, 0.05F, 1.0F}) {
        for (const int32_t top_k : {0, 1, 40, 700, 1 << 30}) {
          cases.push_back({t, top_p, min_p, top_k});
        }
      }
    }
  }
  return cases;
}

// Under every combination of rules, on peaked, flat and tied rows, the sampler draws the token of the definition.
TEST(Sample, EveryRuleCombinationAgreesWithItsDefinition) {
  const int64_t vocab = 2501;
  std::vector<std::vector<float>> rows{random_floats(vocab, 31, 4.0F),
                                       random_floats(vocab, 32, 0.2F),
                                       random_floats(vocab, 33, 2.0F),
                                       std::vector<float>(vocab, 1.5F)};
  for (float& v : rows[2]) {
    v = std::round(v * 2.0F) / 2.0F;  // many ties
  }
  for (int64_t i = 0; i < vocab; i += 3) {
    rows[0][i] = -kInf;
  }
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    Call call{.vocab = vocab};
    std::vector<int32_t> expected;
    for (const RuleCase& c : rule_cases()) {
      const auto i = expected.size();
      SampleParams p = with_temperature(c.temperature, 1000 + i);
      p.top_p = c.top_p;
      p.min_p = c.min_p;
      p.top_k = c.top_k;
      call.add(rows[i % rows.size()], p, static_cast<int32_t>(i));
      expected.push_back(reference_sample(rows[i % rows.size()], p, static_cast<int32_t>(i)));
    }
    call.run(2);
    for (size_t i = 0; i < expected.size(); ++i) {
      const SampleParams& p = call.params[i];
      ASSERT_EQ(call.sampled[i], expected[i])
          << cpu_isa_name(isa) << " temperature " << p.temperature << " top_p " << p.top_p
          << " min_p " << p.min_p << " top_k " << p.top_k;
    }
  }
}

// The tokens that survive a rule, found by repeated sampling.
std::vector<int32_t> drawn_ids(const std::vector<float>& x, const SampleParams& base, int draws) {
  Call call{.vocab = static_cast<int64_t>(x.size())};
  for (int i = 0; i < draws; ++i) {
    call.add(x, base, i);
  }
  call.run();
  std::vector<int32_t> ids = call.sampled;
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
  return ids;
}

// Worked examples of each rule and of their order.
TEST(Sample, WorkedExamplesOfTheRules) {
  SampleParams p = with_temperature(1.0F);
  p.min_p = 0.3F;
  EXPECT_EQ(drawn_ids({2, 1, 0}, p, 300), (std::vector<int32_t>{0, 1}));
  p.temperature = 0.5F;
  EXPECT_EQ(drawn_ids({2, 1, 0}, p, 300), (std::vector<int32_t>{0}))
      << "min_p comes after temperature";

  SampleParams nucleus = with_temperature(1.0F);
  nucleus.top_p = 0.65F;
  const std::vector<float> probs{std::log(.4F), std::log(.3F), std::log(.2F), std::log(.1F)};
  EXPECT_EQ(drawn_ids(probs, nucleus, 300), (std::vector<int32_t>{0, 1}));
  nucleus.top_p = 1e-9F;
  EXPECT_EQ(drawn_ids(probs, nucleus, 300), (std::vector<int32_t>{0}))
      << "at least one token remains";

  SampleParams two = with_temperature(1.0F);
  two.top_k = 2;
  EXPECT_EQ(drawn_ids({3, 3, 3, 1}, two, 300), (std::vector<int32_t>{0, 1}))
      << "exactly k tokens; ties keep the lowest ids";
  // top_p applies to the mass that top_k left: .4 / (.4 + .3) = .571 alone reaches .55.
  two.top_p = 0.55F;
  EXPECT_EQ(drawn_ids(probs, two, 300), (std::vector<int32_t>{0}));
}

// Pearson's chi-square statistic of 100,000 draws against the exact distribution stays under its 1 - 1e-6 quantile.
void expect_distribution(const SampleParams& base) {
  const std::vector<float> x{1.0F, 2.0F, -1.0F, 0.5F, 2.5F, 0.0F, -3.0F, 1.5F, 2.0F, 0.25F};
  const int draws = 100000;
  Call call{.vocab = static_cast<int64_t>(x.size())};
  for (int i = 0; i < draws; ++i) {
    call.add(x, base, i % 500);
    call.params.back().seed = base.seed + static_cast<uint64_t>(i / 500);
  }
  call.run(2);
  const auto survivors = reference_survivors(x, base);
  std::vector<double> weight(x.size(), 0.0);
  double total = 0.0;
  for (const int32_t id : survivors) {
    weight[id] = std::exp(static_cast<double>(x[id]) / base.temperature);
    total += weight[id];
  }
  std::vector<int> count(x.size(), 0);
  for (const int32_t id : call.sampled) {
    ++count[id];
  }
  double statistic = 0.0;
  for (size_t i = 0; i < x.size(); ++i) {
    if (weight[i] == 0.0) {
      EXPECT_EQ(count[i], 0);
      continue;
    }
    const double expected = draws * weight[i] / total;
    statistic += (count[i] - expected) * (count[i] - expected) / expected;
  }
  const double df = static_cast<double>(survivors.size()) - 1.0;
  // Wilson and Hilferty's approximation of the chi-square quantile; 4.75 is the normal quantile for 1e-6.
  const double cube = 1.0 - 2.0 / (9.0 * df) + 4.75 * std::sqrt(2.0 / (9.0 * df));
  EXPECT_LT(statistic, df * cube * cube * cube) << survivors.size() << " survivors";
}

TEST(Sample, DistributionOfTemperature) {
  expect_distribution(with_temperature(1.0F, 12345));
  expect_distribution(with_temperature(0.6F, 777));
}
TEST(Sample, DistributionOfTopK) {
  SampleParams p = with_temperature(1.0F, 99);
  p.top_k = 4;
  expect_distribution(p);
}
TEST(Sample, DistributionOfTopP) {
  SampleParams p = with_temperature(1.2F, 98);
  p.top_p = 0.8F;
  expect_distribution(p);
}
TEST(Sample, DistributionOfMinP) {
  SampleParams p = with_temperature(1.0F, 97);
  p.min_p = 0.2F;
  expect_distribution(p);
}

// A seeded draw depends only on its own row.
TEST(Sample, DrawDependsOnSeedAndPositionOnly) {
  const int64_t vocab = 5000;
  const auto x = random_floats(vocab, 41, 1.0F);
  SampleParams p = with_temperature(1.0F, 0xfeedfacecafef00dULL);
  for (const int32_t variant : {0, 1, 2}) {
    p.top_k = variant == 1 ? 50 : 0;
    p.top_p = variant == 2 ? 0.9F : 1.0F;
    Call alone{.vocab = vocab};
    alone.add(x, p, 17);
    alone.run();
    Call crowd{.vocab = vocab};
    for (uint32_t i = 0; i < 63; ++i) {
      crowd.add(
          random_floats(vocab, 100 + i, 1.0F), with_temperature(i % 2 == 0 ? 0.0F : 0.8F, i), 3);
    }
    crowd.add(x, p, 17);
    std::swap(crowd.row[63],
              crowd.row[20]);  // another row of the parameters, another place in the batch
    std::swap_ranges(
        crowd.logits.begin() + 63 * vocab, crowd.logits.end(), crowd.logits.begin() + 20 * vocab);
    std::swap(crowd.position[63], crowd.position[20]);
    crowd.run(2);
    EXPECT_EQ(crowd.sampled[20], alone.sampled[0]);
    for (const CpuIsa isa : testing::runnable_isas()) {
      const ScopedCpuIsa scope(isa);
      Call again{.vocab = vocab};
      again.add(x, p, 17);
      again.run();
      EXPECT_EQ(again.sampled[0], alone.sampled[0]) << cpu_isa_name(isa);
    }
  }
}

// Frozen values, equal to those of a Python program. A change here changes every user's seeded output.
TEST(Sample, GoldenDraws) {
  Call call{.vocab = 1000};
  for (int32_t position = 0; position < 6; ++position) {
    call.add(std::vector<float>(1000, 0.0F), with_temperature(1.0F, 42), position);
  }
  call.run();
  EXPECT_EQ(call.sampled, (std::vector<int32_t>{645, 617, 733, 788, 856, 754}));
}

TEST(Sample, RawLogprobsAndRank) {
  SampleParams greedy = with_temperature(0.0F);
  greedy.num_logprobs = 0;
  Call call{.vocab = 3};
  call.add({0.0F, 0.0F, std::log(2.0F)}, greedy, 0);
  call.run();
  EXPECT_NEAR(call.logprob[0], -0.6931F, 1e-4F);
  EXPECT_EQ(call.rank[0], 1);
  EXPECT_EQ(call.top_ids[0], -1) << "0 requests only the sampled token";

  SampleParams top = with_temperature(0.0F);
  top.num_logprobs = 3;
  Call ties{.vocab = 4};
  ties.add({1, 3, 3, 0}, top, 0);
  ties.run();
  EXPECT_EQ(ties.sampled[0], 1);
  EXPECT_EQ(ties.rank[0], 2) << "ties count";
  EXPECT_EQ(std::vector<int32_t>(ties.top_ids.begin(), ties.top_ids.begin() + 4),
            (std::vector<int32_t>{1, 2, 0, -1}));
  EXPECT_EQ(ties.top_logprobs[0], ties.top_logprobs[1]);
  EXPECT_EQ(ties.top_logprobs[0], ties.logprob[0]);
  EXPECT_EQ(ties.top_logprobs[3], -kInf);
}

// Logprobs are of the raw logits. Temperature, min_p, top_k and top_p do not affect them.
TEST(Sample, LogprobsAgreeWithDoubleWhateverTheRules) {
  const int64_t vocab = 3001;
  const auto x = random_floats(vocab, 51, 3.0F);
  double sum = 0.0;
  for (const float v : x) {
    sum += std::exp(static_cast<double>(v));
  }
  std::vector<int32_t> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return x[a] > x[b] || (x[a] == x[b] && a < b);
  });
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    SampleParams p = with_temperature(3.0F, 5);
    p.num_logprobs = 20;
    p.top_k = 1000;
    p.top_p = 0.95F;
    Call call{.vocab = vocab};
    call.add(x, p, 9);
    call.run();
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(call.top_ids[i], order[i]);
      EXPECT_NEAR(call.top_logprobs[i], x[order[i]] - std::log(sum), 2e-6);
    }
    const int32_t token = call.sampled[0];
    EXPECT_NEAR(call.logprob[0], x[token] - std::log(sum), 2e-6);
    EXPECT_EQ(call.rank[0], std::find(order.begin(), order.end(), token) - order.begin() + 1);
  }
}

TEST(Sample, BadRowsFailAloneAndPaddingYieldsNothing) {
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    Call call{.vocab = 70};
    const auto good = random_floats(70, 61);
    auto with_nan = good;
    with_nan[69] = std::nanf("");
    auto with_inf = good;
    with_inf[3] = kInf;
    SampleParams p = with_temperature(1.0F, 8);
    p.num_logprobs = 2;
    for (const auto& x : {good, with_nan, std::vector<float>(70, -kInf), with_inf, good}) {
      call.add(x, p, 2);
    }
    call.add(good, p, 2);
    call.row[5] = -1;
    call.run();
    EXPECT_GE(call.sampled[0], 0);
    EXPECT_EQ(call.sampled[4], call.sampled[0]);
    EXPECT_EQ(call.error, (std::vector<int32_t>{0, 1, 1, 1, 0, 0}));
    for (const size_t i : {1U, 2U, 3U, 5U}) {
      EXPECT_EQ(call.sampled[i], -1);
      EXPECT_EQ(call.rank[i], 0);
      EXPECT_EQ(call.top_ids[i * 20], -1);
    }
  }
}

TEST(Sample, VocabularyOfOne) {
  Call call{.vocab = 1};
  SampleParams p = with_temperature(1.0F);
  p.top_k = 5;
  p.top_p = 0.5F;
  p.num_logprobs = 5;
  call.add({-4.0F}, p, 0);
  call.run();
  EXPECT_EQ(call.sampled[0], 0);
  EXPECT_EQ(call.logprob[0], 0.0F);
  EXPECT_EQ(call.top_ids[0], 0);
  EXPECT_EQ(call.top_ids[1], -1);
}

}  // namespace
}  // namespace warprow
