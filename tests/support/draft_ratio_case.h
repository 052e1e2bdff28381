// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn, and verified by ratio, with their laws by definition: for the tests of each backend.
#pragma once

#include "base/philox.h"
#include "kernels/sample/draw_drafts.h"
#include "kernels/sample/rules/gumbel.h"
#include "kernels/sample/sample.h"
#include "tests/support/distribution_distance.h"
#include "tests/support/op_case.h"
#include "tests/support/sample_case.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow::testing::ratio {

inline constexpr int32_t kMaxDrafts = 3;
inline constexpr int32_t kNumber = 1;  // of the draft under test
inline constexpr int32_t kPosition = 40;

// The logits of both models behind the same tokens, and the request's parameters.
struct Models {
  std::vector<float> target;
  std::vector<float> drafter;
  std::vector<int32_t> ids{};  // of the target by id of the drafter; empty: the same
  SampleParams params{};
};

inline Models models_of(const std::vector<double>& p, const std::vector<double>& q) {
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

// Each rule on the draw, alone and together. They apply to both models.
inline std::vector<Models> models_under_rules() {
  std::vector<Models> all;
  const auto add = [&](float temperature, float min_p, int32_t top_k, float top_p) {
    Models& models = all.emplace_back();
    models.target = {1.0F, -0.5F, 2.0F, 0.3F, 1.9F, -2.0F, 0.0F, 1.2F};
    models.drafter = {1.5F, 0.5F, 1.0F, 0.1F, 2.2F, -1.0F, 1.0F, -0.4F};
    models.params.temperature = temperature;
    models.params.min_p = min_p;
    models.params.top_k = top_k;
    models.params.top_p = top_p;
  };
  add(1.3F, 0.0F, 0, 1.0F);
  add(0.8F, 0.0F, 5, 1.0F);
  add(1.0F, 0.0F, 0, 0.8F);
  add(1.0F, 0.15F, 0, 1.0F);
  add(0.7F, 0.05F, 6, 0.9F);
  return all;
}

// Models of many tokens that are alike: with all tokens, with a cut that leaves many, and with a drafter of 700 tokens.
inline std::vector<Models> long_models(int32_t vocab) {
  Models models;
  models.target = normals(static_cast<size_t>(vocab), 3, 2.0F);
  models.drafter = models.target;
  const std::vector<float> noise = normals(models.target.size(), 4);
  for (size_t i = 0; i < noise.size(); ++i) {
    models.drafter[i] += noise[i];
  }
  models.params.temperature = 0.9F;
  Models cut = models;
  cut.params.top_k = 900;
  cut.params.top_p = 0.97F;
  Models own_ids = models;
  own_ids.drafter.resize(700);
  for (int32_t i = 0; i < 700; ++i) {
    own_ids.ids.push_back(7 * i + 3);
  }
  return {models, cut, own_ids};
}

// Where draws run.
struct RatioRig {
  Stream& stream;
  CaseMemory& memory;
  std::function<void(void* to, const void* from, size_t bytes)> read;

  template <typename T>
  [[nodiscard]] std::vector<T> read_all(const T* from, size_t n) const {
    std::vector<T> values(n);
    read(values.data(), from, n * sizeof(T));
    return values;
  }
};

// A request for each of n seeds, from `seed` on: its draft, and the token after verification. The requests are in rows of
// another order.
inline std::vector<Outcome> run(const RatioRig& rig,
                                const Models& models,
                                uint64_t seed,
                                int32_t n) {
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
  std::vector<SampleParams> params(size, models.params);
  for (int32_t i = 0; i < n; ++i) {
    params[static_cast<size_t>(row[static_cast<size_t>(i)])].seed = seed + static_cast<uint64_t>(i);
  }
  std::vector<int32_t> own_ids(models.ids.empty() ? 0 : models.target.size(), -1);
  for (size_t own = 0; own < models.ids.size(); ++own) {
    own_ids[static_cast<size_t>(models.ids[own])] = static_cast<int32_t>(own);
  }
  CaseMemory& memory = rig.memory;
  const size_t places = size * kMaxDrafts;
  DraftProbs drafts;
  drafts.tokens = memory.put(std::vector<int32_t>(places, -7));
  drafts.probs = memory.put(std::vector<float>(places * models.drafter.size(), -7.0F));
  drafts.width = width;
  drafts.ids = models.ids.empty() ? nullptr : memory.put(models.ids);
  drafts.own_ids = models.ids.empty() ? nullptr : memory.put(own_ids);
  const DeviceFacts& device = rig.stream.device().facts();
  const size_t scratch =
      sample_scratch_bytes(device.kind, std::max(vocab, width), n, device.num_threads);

  DrawDraftsArgs draw;
  draw.logits = make_view<const float>(memory.put(drafter), n, width);
  draw.row = make_view<const int32_t>(memory.put(row), n);
  draw.params = make_view<const SampleParams>(memory.put(params), n);
  draw.total_len = memory.put(std::vector<int32_t>(size, kPosition + 1 - kNumber));
  draw.number = kNumber;
  draw.max_drafts = kMaxDrafts;
  draw.drafts = drafts;
  draw.scratch = make_view(memory.put(std::vector<std::byte>(scratch, std::byte{0xa5})),
                           static_cast<int64_t>(scratch));
  draw_drafts(rig.stream, draw);

  const std::vector<int32_t> none(size, -7);
  const std::vector<float> no_logprobs(size, -7.0F);
  SampleArgs a;
  a.logits = make_view<const float>(memory.put(target), n, vocab);
  a.logit_row = draw.row;
  a.logit_pos = make_view<const int32_t>(memory.put(std::vector<int32_t>(size, kPosition)), n);
  a.params = draw.params;
  a.sampled = make_view(memory.put(none), n);
  a.logprob = make_view(memory.put(no_logprobs), n);
  a.rank = make_view(memory.put(none), n);
  a.top_ids = make_view(memory.put(none), n, 1);
  a.top_logprobs = make_view(memory.put(no_logprobs), n, 1);
  a.error = make_view(memory.put(none), n);
  a.draft_at = make_view<const int32_t>(memory.put(place), n);
  a.drafts = drafts;
  a.scratch = draw.scratch;
  sample(rig.stream, a);
  rig.stream.synchronize();

  const std::vector<int32_t> tokens = rig.read_all(drafts.tokens, places);
  const std::vector<int32_t> sampled = rig.read_all(a.sampled.data, size);
  const std::vector<float> logprob = rig.read_all(a.logprob.data, size);
  std::vector<Outcome> out;
  for (size_t i = 0; i < size; ++i) {
    out.push_back({tokens[static_cast<size_t>(place[i])], sampled[i], logprob[i]});
  }
  for (const int32_t error : rig.read_all(a.error.data, size)) {
    EXPECT_EQ(error, 0);
  }
  return out;
}

inline std::vector<double> probabilities(const std::vector<float>& left) {
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

inline double distance_of_pairs(const Models& models, const std::vector<Outcome>& outcomes) {
  std::map<std::pair<int32_t, int32_t>, int32_t> seen;
  for (const Outcome& outcome : outcomes) {
    ++seen[{outcome.draft, outcome.token}];
  }
  return warprow::test::distance(Laws(models).pairs(), seen);
}

inline double distance_of_tokens(const Models& models, const std::vector<Outcome>& outcomes) {
  std::map<int32_t, double> law;
  const Laws laws(models);
  for (size_t i = 0; i < laws.p.size(); ++i) {
    law[static_cast<int32_t>(i)] = laws.p[i];
  }
  std::map<int32_t, int32_t> seen;
  for (const Outcome& outcome : outcomes) {
    ++seen[outcome.token];
  }
  return warprow::test::distance(law, seen);
}

inline constexpr int32_t kDraws = 40000;

// Expects tokens, pairs of draft and token, and acceptance of kDraws outcomes as the rule has them.
inline void expect_law(const Models& models, const std::vector<Outcome>& outcomes) {
  ASSERT_EQ(outcomes.size(), static_cast<size_t>(kDraws));
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

// Which random bits the parts of the rule use.
struct Purposes {
  RandomPurpose draft = RandomPurpose::kDraft;
  RandomPurpose accept = RandomPurpose::kAccept;
  RandomPurpose recover = RandomPurpose::kRecover;
};

// The rule by its definition, in doubles.
inline Outcome reference(const Models& models,
                         const Laws& laws,
                         uint64_t seed,
                         const Purposes& purposes) {
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

inline std::vector<Outcome> references(const Models& models, int32_t n, const Purposes& purposes) {
  const Laws laws(models);
  std::vector<Outcome> out;
  out.reserve(static_cast<size_t>(n));
  for (int32_t i = 0; i < n; ++i) {
    out.push_back(reference(models, laws, 1 + static_cast<uint64_t>(i), purposes));
  }
  return out;
}

// Outcomes of n requests with seeds from `seed` on.
using Draws = std::function<std::vector<Outcome>(const Models&, uint64_t seed, int32_t n)>;

inline void expect_references_of_long_rows(const Draws& draws, int32_t vocab) {
  constexpr int32_t kSeeds = 100;
  for (const Models& models : long_models(vocab)) {
    const std::vector<Outcome> outcomes = draws(models, 1, kSeeds);
    EXPECT_EQ(outcomes, references(models, kSeeds, {}));
    const auto rejected = std::count_if(
        outcomes.begin(), outcomes.end(), [](const Outcome& o) { return o.draft != o.token; });
    EXPECT_GT(rejected, kSeeds / 10);
    EXPECT_LT(rejected, kSeeds);
  }
}

// Logprobs are the model's, for drafts and for the tokens that replace them.
inline void expect_logprobs_of_the_model(const Draws& draws) {
  Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  models.params.num_logprobs = 0;
  int32_t num_rejected = 0;
  for (const Outcome& outcome : draws(models, 1, 50)) {
    EXPECT_NEAR(outcome.logprob, std::log(outcome.token == 0 ? 0.2 : 0.4), 1e-5);
    num_rejected += outcome.draft != outcome.token ? 1 : 0;
  }
  EXPECT_GT(num_rejected, 5);
}

// Neither drafts nor tokens of greedy rows are drawn: match.
inline void expect_largest_logits_of_greedy_rows(const Draws& draws) {
  Models models;
  models.target = {1.0F, 3.0F, 3.0F, 2.0F};
  models.drafter = {0.0F, 1.0F, 5.0F, 5.0F};
  models.params.temperature = 0.0F;
  for (const Outcome& outcome : draws(models, 1, 20)) {
    EXPECT_EQ(outcome.draft, 2);
    EXPECT_EQ(outcome.token, 1);
  }
}

// A drafter with a logit that is no number drafts nothing, and the token is an ordinary draw.
inline void expect_ordinary_draws_without_drafts(const Draws& draws, float bad) {
  Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  models.drafter[1] = bad;
  const std::vector<float> left = survivors_of(models.target, models.params);
  const std::vector<Outcome> outcomes = draws(models, 1, 50);
  for (size_t i = 0; i < outcomes.size(); ++i) {
    SampleRow row;
    row.params = models.params;
    row.params.seed = 1 + i;
    row.tokens.assign(kPosition + 1, 0);
    EXPECT_EQ(outcomes[i].draft, -1);
    EXPECT_EQ(outcomes[i].token, draw_from(left, row));
  }
}

}  // namespace warprow::testing::ratio
