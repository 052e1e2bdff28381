// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn, and verified by ratio: the token has the distribution that it has without drafts. Seeds are fixed;
// limits are those of a chi-square test at 1e-4.
#include "tests/kernels/cpu_harness.h"
#include "tests/support/draft_ratio_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using namespace testing::ratio;

std::vector<Outcome> run(const Models& models, uint64_t seed, int32_t n, int32_t threads = 2) {
  const CpuHarness cpu(threads);
  testing::HostMemory memory;
  return run({*cpu.stream,
              memory,
              [](void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }},
             models,
             seed,
             n);
}

std::vector<Outcome> draws(const Models& models, uint64_t seed, int32_t n) {
  return run(models, seed, n);
}

void expect_law(const Models& models) { expect_law(models, run(models, 1, kDraws)); }

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
  for (const Models& models : models_under_rules()) {
    expect_law(models);
  }
}

// A head with ids of its own drafts some of the model's tokens only.
TEST(DraftRatio, AHeadWithAVocabularyOfItsOwn) {
  Models models = models_of({0.1, 0.2, 0.05, 0.3, 0.15, 0.2}, {0.5, 0.2, 0.3});
  models.ids = {5, 0, 2};
  expect_law(models);
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

// With and without cuts that leave long lists, on each instruction set.
TEST(DraftRatio, LongRowsAreTheReference) {
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    SCOPED_TRACE(cpu_isa_name(isa));
    expect_references_of_long_rows(draws, 5003);
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

TEST(DraftRatio, LogprobsAreThoseOfTheModel) { expect_logprobs_of_the_model(draws); }

TEST(DraftRatio, GreedyRowsTakeTheLargestLogits) { expect_largest_logits_of_greedy_rows(draws); }

TEST(DraftRatio, ADrafterWithoutLogitsDraftsNothing) {
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_ordinary_draws_without_drafts(draws, bad);
  }
}

}  // namespace
}  // namespace warprow
