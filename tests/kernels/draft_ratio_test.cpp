// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn, and verified by ratio: the token has the distribution that it has without drafts. Seeds are fixed;
// limits are those of a chi-square test at 1e-4.
#include "kernels/sample/draw_drafts.h"
#include "kernels/sample/rules/ratio.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/support/distribution_distance.h"
#include "tests/support/sample_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::kMinusInf;

constexpr int32_t kMaxDrafts = 3;
constexpr int32_t kNumber = 1;  // of the draft under test
constexpr int32_t kPosition = 40;

// The logits of both models behind the same tokens, and the request's parameters.
struct Models {
  std::vector<float> target;
  std::vector<float> drafter;
  std::vector<int32_t> ids{};  // of the target by id of the drafter; empty: the same
  SampleParams params{};
};

Models models_of(const std::vector<double>& p, const std::vector<double>& q) {
  const auto logs = [](const std::vector<double>& from) {
    std::vector<float> to;
    to.reserve(from.size());
    for (const double x : from) {
      to.push_back(x > 0 ? static_cast<float>(std::log(x)) : kMinusInf);
    }
    return to;
  };
  Models models{logs(p), logs(q), {}, {}};
  models.params.temperature = 1.0F;
  return models;
}

struct Outcome {
  int32_t draft = -7;  // by the target's ids
  int32_t token = -7;
  float logprob = 0;
  bool operator==(const Outcome& other) const {
    return draft == other.draft && token == other.token;
  }
};

// A request for each of n seeds, from `seed` on: its draft, and the token after verification. The requests are in rows of
// another order.
std::vector<Outcome> run(const Models& models, uint64_t seed, int32_t n, int32_t threads = 2) {
  CpuHarness cpu(threads);
  const auto vocab = static_cast<int64_t>(models.target.size());
  const auto width = static_cast<int64_t>(models.drafter.size());
  std::vector<float> target;
  std::vector<float> drafter;
  std::vector<int32_t> row;
  std::vector<int32_t> place;
  for (int32_t i = 0; i < n; ++i) {
    target.insert(target.end(), models.target.begin(), models.target.end());
    drafter.insert(drafter.end(), models.drafter.begin(), models.drafter.end());
    row.push_back(n - 1 - i);
    place.push_back(row.back() * kMaxDrafts + kNumber);
  }
  const auto size = static_cast<size_t>(n);
  const std::vector<int32_t> position(size, kPosition);
  const std::vector<int32_t> total_len(size, kPosition + 1 - kNumber);
  std::vector<SampleParams> params(size, models.params);
  for (int32_t i = 0; i < n; ++i) {
    params[static_cast<size_t>(row[static_cast<size_t>(i)])].seed = seed + static_cast<uint64_t>(i);
  }
  std::vector<int32_t> tokens(size * kMaxDrafts, -7);
  std::vector<float> probs(tokens.size() * models.drafter.size(), -7.0F);
  std::vector<std::byte> scratch(cpu::sample_scratch_bytes(std::max(vocab, width), threads),
                                 std::byte{0xa5});
  const DraftProbs drafts{
      tokens.data(), probs.data(), width, models.ids.empty() ? nullptr : models.ids.data()};

  DrawDraftsArgs draw;
  draw.logits = make_view<const float>(drafter.data(), n, width);
  draw.row = make_view<const int32_t>(row.data(), n);
  draw.params = make_view<const SampleParams>(params.data(), n);
  draw.total_len = total_len.data();
  draw.number = kNumber;
  draw.max_drafts = kMaxDrafts;
  draw.drafts = drafts;
  draw.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
  draw_drafts(*cpu.stream, draw);

  std::vector<int32_t> sampled(size), rank(size), error(size), top_ids(size);
  std::vector<float> logprob(size), top_logprobs(size);
  SampleArgs a;
  a.logits = make_view<const float>(target.data(), n, vocab);
  a.logit_row = draw.row;
  a.logit_pos = make_view<const int32_t>(position.data(), n);
  a.params = draw.params;
  a.sampled = make_view(sampled.data(), n);
  a.logprob = make_view(logprob.data(), n);
  a.rank = make_view(rank.data(), n);
  a.top_ids = make_view(top_ids.data(), n, 1);
  a.top_logprobs = make_view(top_logprobs.data(), n, 1);
  a.error = make_view(error.data(), n);
  a.draft_at = make_view<const int32_t>(place.data(), n);
  a.drafts = drafts;
  a.scratch = draw.scratch;
  sample(*cpu.stream, a);

  std::vector<Outcome> out;
  for (size_t i = 0; i < size; ++i) {
    EXPECT_EQ(error[i], 0);
    out.push_back({tokens[static_cast<size_t>(place[i])], sampled[i], logprob[i]});
  }
  return out;
}

std::vector<double> probabilities(const std::vector<float>& left) {
  const float max = *std::max_element(left.begin(), left.end());
  std::vector<double> p;
  double total = 0.0;
  for (const float x : left) {
    p.push_back(std::exp(static_cast<double>(x) - max));
    total += p.back();
  }
  for (double& x : p) {
    x /= total;
  }
  return p;
}

// The distributions of the rule by its definition, in doubles.
struct Laws {
  std::vector<float> own;    // the drafter's logits after its rules, by its ids
  std::vector<double> p;     // of the token, by the target's ids, as the others
  std::vector<double> q;     // of the draft
  std::vector<double> rest;  // max(0, p - q), normalised
  double acceptance = 0.0;

  explicit Laws(const Models& models)
      : own(testing::survivors_of(models.drafter, models.params)),
        p(probabilities(testing::survivors_of(models.target, models.params))),
        q(p.size()) {
    const std::vector<double> by_own_id = probabilities(own);
    for (size_t i = 0; i < own.size(); ++i) {
      q[models.ids.empty() ? i : static_cast<size_t>(models.ids[i])] += by_own_id[i];
    }
    for (size_t i = 0; i < p.size(); ++i) {
      acceptance += std::min(p[i], q[i]);
    }
    for (size_t i = 0; i < p.size(); ++i) {
      rest.push_back(std::max(0.0, p[i] - q[i]) / (1.0 - acceptance));
    }
  }
  // The probability of each pair of draft and token.
  [[nodiscard]] std::map<std::pair<int32_t, int32_t>, double> pairs() const {
    std::map<std::pair<int32_t, int32_t>, double> joint;
    for (size_t d = 0; d < p.size(); ++d) {
      const double accepted = std::min(p[d], q[d]);
      for (size_t t = 0; t < p.size(); ++t) {
        const double replaced = q[d] > accepted ? (q[d] - accepted) * rest[t] : 0.0;
        joint[{static_cast<int32_t>(d), static_cast<int32_t>(t)}] =
            replaced + (d == t ? accepted : 0.0);
      }
    }
    return joint;
  }
};

double distance_of_pairs(const Models& models, const std::vector<Outcome>& outcomes) {
  std::map<std::pair<int32_t, int32_t>, int32_t> seen;
  for (const Outcome& outcome : outcomes) {
    ++seen[{outcome.draft, outcome.token}];
  }
  return test::distance(Laws(models).pairs(), seen);
}

double distance_of_tokens(const Models& models, const std::vector<Outcome>& outcomes) {
  std::map<int32_t, double> law;
  const Laws laws(models);
  for (size_t i = 0; i < laws.p.size(); ++i) {
    law[static_cast<int32_t>(i)] = laws.p[i];
  }
  std::map<int32_t, int32_t> seen;
  for (const Outcome& outcome : outcomes) {
    ++seen[outcome.token];
  }
  return test::distance(law, seen);
}

constexpr int32_t kDraws = 40000;

// Expects tokens, pairs of draft and token, and acceptance as the rule has them.
void expect_law(const Models& models) {
  const std::vector<Outcome> outcomes = run(models, 1, kDraws);
  EXPECT_LT(distance_of_tokens(models, outcomes), 1.0);
  EXPECT_LT(distance_of_pairs(models, outcomes), 1.0);
  double accepted = 0.0;
  for (const Outcome& outcome : outcomes) {
    accepted += outcome.draft == outcome.token ? 1 : 0;
  }
  const double expected = Laws(models).acceptance;
  const double deviation = std::sqrt(expected * (1.0 - expected) / kDraws);
  EXPECT_NEAR(accepted / kDraws, expected, 4.0 * deviation + 1e-9);
}

// The distributions for which facts on other engines are known: the first is that of vllm#47386, where .2, .356, .444 came
// out.
TEST(DraftRatio, TokensHaveTheModelsDistribution) {
  expect_law(models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1}));
  expect_law(models_of({0.5, 0.3, 0.2}, {0.4, 0.4, 0.2}));
  expect_law(models_of({0.9, 0.05, 0.05}, {0.8, 0.1, 0.1}));
  expect_law(models_of({0.25, 0.25, 0.25, 0.25}, {0.25, 0.25, 0.25, 0.25}));
  expect_law(models_of({0.5, 0.5, 0, 0}, {0, 0, 0.3, 0.7}));  // all are rejected
  expect_law(models_of({0.1, 0, 0.6, 0.3}, {0.2, 0.5, 0.3, 0}));
}

// The temperature and the cuts apply to both.
TEST(DraftRatio, UnderEachRuleOnTheDraw) {
  Models models;
  models.target = {1.0F, -0.5F, 2.0F, 0.3F, 1.9F, -2.0F, 0.0F, 1.2F};
  models.drafter = {1.5F, 0.5F, 1.0F, 0.1F, 2.2F, -1.0F, 1.0F, -0.4F};
  const auto with = [&](float temperature, float min_p, int32_t top_k, float top_p) {
    models.params.temperature = temperature;
    models.params.min_p = min_p;
    models.params.top_k = top_k;
    models.params.top_p = top_p;
    return models;
  };
  expect_law(with(1.3F, 0.0F, 0, 1.0F));
  expect_law(with(0.8F, 0.0F, 5, 1.0F));
  expect_law(with(1.0F, 0.0F, 0, 0.8F));
  expect_law(with(1.0F, 0.15F, 0, 1.0F));
  expect_law(with(0.7F, 0.05F, 6, 0.9F));
}

// A head with ids of its own drafts some of the model's tokens only.
TEST(DraftRatio, AHeadWithAVocabularyOfItsOwn) {
  Models models = models_of({0.1, 0.2, 0.05, 0.3, 0.15, 0.2}, {0.5, 0.2, 0.3});
  models.ids = {5, 0, 2};
  expect_law(models);
}

// Which random bits the parts of the rule use.
struct Purposes {
  RandomPurpose draft = RandomPurpose::kDraft;
  RandomPurpose accept = RandomPurpose::kAccept;
  RandomPurpose recover = RandomPurpose::kRecover;
};

// The rule by its definition, in doubles.
Outcome reference(const Models& models, const Laws& laws, uint64_t seed, const Purposes& purposes) {
  const auto key = [&](RandomPurpose purpose) { return RandomKey{seed, kPosition, purpose}; };
  int32_t draft = -1;
  double best = 0.0;
  for (int32_t id = 0; id < static_cast<int32_t>(laws.own.size()); ++id) {
    const float x = laws.own[static_cast<size_t>(id)];
    const double score = gumbel_score(x, key(purposes.draft), id);
    if (x != kMinusInf && (draft < 0 || score > best)) {
      draft = id;
      best = score;
    }
  }
  draft = models.ids.empty() ? draft : models.ids[static_cast<size_t>(draft)];
  const auto at = static_cast<size_t>(draft);
  if (uniform_open(random_bits(key(purposes.accept), 0)) * laws.q[at] < laws.p[at]) {
    return {draft, draft};
  }
  const double target = uniform_open(random_bits(key(purposes.recover), 0));
  double reached = 0.0;
  int32_t token = 0;
  while (token + 1 < static_cast<int32_t>(laws.rest.size()) &&
         (reached += laws.rest[static_cast<size_t>(token)]) <= target) {
    ++token;
  }
  return {draft, token};
}

std::vector<Outcome> references(const Models& models, int32_t n, const Purposes& purposes) {
  const Laws laws(models);
  std::vector<Outcome> out;
  out.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    out.push_back(reference(models, laws, 1 + static_cast<uint64_t>(i), purposes));
  }
  return out;
}

// vllm#47386. Draft, acceptance and replacement must be independent. Whichever two of them share their random bits, the
// same test of the same distributions sees it. With bits of their own, outcomes are the kernel's.
TEST(DraftRatio, SharedStreamsAreSeen) {
  using enum RandomPurpose;
  const Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  const std::vector<Outcome> right = references(models, kDraws, {});
  EXPECT_EQ(run(models, 1, kDraws), right);
  EXPECT_LT(distance_of_tokens(models, right), 1.0);
  for (const Purposes& shared : {Purposes{kDraft, kAccept, kAccept},
                                 Purposes{kDraft, kAccept, kDraft},
                                 Purposes{kDraft, kDraft, kRecover},
                                 Purposes{kSample, kSample, kSample}}) {
    const std::vector<Outcome> outcomes = references(models, kDraws, shared);
    EXPECT_GT(distance_of_tokens(models, outcomes), 10.0);
    EXPECT_GT(distance_of_pairs(models, outcomes), 10.0);
  }
}

// Long rows, with and without cuts that leave long lists, on each instruction set.
TEST(DraftRatio, LongRowsAreTheReference) {
  constexpr int32_t kVocab = 5003;
  constexpr int32_t kSeeds = 100;
  Models models;
  models.target = testing::random_floats(kVocab, 3, 2.0F);
  const std::vector<float> noise = testing::random_floats(kVocab, 4, 1.0F);
  models.drafter = models.target;
  std::transform(noise.begin(),
                 noise.end(),
                 models.drafter.begin(),
                 models.drafter.begin(),
                 [](float a, float b) { return a + b; });
  models.params.temperature = 0.9F;
  Models cut = models;
  cut.params.top_k = 900;
  cut.params.top_p = 0.97F;
  Models own_ids = models;
  own_ids.drafter.resize(700);
  for (int32_t i = 0; i < 700; ++i) {
    own_ids.ids.push_back(7 * i + 3);
  }
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    SCOPED_TRACE(cpu_isa_name(isa));
    for (const Models& each : {models, cut, own_ids}) {
      const std::vector<Outcome> outcomes = run(each, 1, kSeeds);
      EXPECT_EQ(outcomes, references(each, kSeeds, {}));
      const auto rejected = std::count_if(
          outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.draft != o.token; });
      EXPECT_GT(rejected, kSeeds / 10);
      EXPECT_LT(rejected, kSeeds);
    }
  }
}

TEST(DraftRatio, ARowsTokensAreItsOwn) {
  Models models;
  models.target = testing::random_floats(200, 5, 2.0F);
  models.drafter = testing::random_floats(200, 6, 2.0F);
  models.params.temperature = 1.0F;
  models.params.top_k = 40;
  const std::vector<Outcome> together = run(models, 10, 64, 3);
  for (int32_t i = 0; i < 64; ++i) {
    EXPECT_EQ(run(models, 10 + static_cast<uint64_t>(i), 1, 1).front(),
              together[static_cast<size_t>(i)]);
  }
}

// Logprobs are the model's, for drafts and for the tokens that replace them.
TEST(DraftRatio, LogprobsAreThoseOfTheModel) {
  Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  models.params.num_logprobs = 0;
  int32_t num_rejected = 0;
  for (const Outcome& outcome : run(models, 1, 50)) {
    EXPECT_NEAR(outcome.logprob, std::log(outcome.token == 0 ? 0.2 : 0.4), 1e-5);
    num_rejected += outcome.draft != outcome.token ? 1 : 0;
  }
  EXPECT_GT(num_rejected, 5);
}

// Neither drafts nor tokens of greedy rows are drawn: match.
TEST(DraftRatio, GreedyRowsTakeTheLargestLogits) {
  Models models;
  models.target = {1.0F, 3.0F, 3.0F, 2.0F};
  models.drafter = {0.0F, 1.0F, 5.0F, 5.0F};
  models.params.temperature = 0.0F;
  for (const Outcome& outcome : run(models, 1, 20)) {
    EXPECT_EQ(outcome.draft, 2);
    EXPECT_EQ(outcome.token, 1);
  }
}

// A drafter whose logits are no numbers drafts nothing, and the token is an ordinary draw.
TEST(DraftRatio, ADrafterWithoutLogitsDraftsNothing) {
  Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  const std::vector<float> left = testing::survivors_of(models.target, models.params);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    models.drafter[1] = bad;
    const std::vector<Outcome> outcomes = run(models, 1, 50);
    for (size_t i = 0; i < outcomes.size(); ++i) {
      testing::SampleRow row;
      row.params = models.params;
      row.params.seed = 1 + i;
      row.tokens.assign(kPosition + 1, 0);
      EXPECT_EQ(outcomes[i].draft, -1);
      EXPECT_EQ(outcomes[i].token, testing::draw_from(left, row));
    }
  }
}

}  // namespace
}  // namespace warprow
