// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn and verified by ratio on CUDA: the law of the tokens, and the outcomes of the rule by its definition.
#include "tests/cuda/cuda_test.h"
#include "tests/support/draft_ratio_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using testing::normals;
using namespace testing::ratio;

class DraftRatioCuda : public CudaTest {
 protected:
  std::vector<Outcome> outcomes(const Models& models, uint64_t seed, int32_t n) {
    arena().reset();
    ArenaMemory mem = memory();
    return run({stream(),
                mem,
                [this](void* to, const void* from, size_t bytes) {
                  stream().copy_to_host(to, from, bytes);
                  stream().synchronize();
                }},
               models,
               seed,
               n);
  }
  void expect_law_of(const Models& models) { expect_law(models, outcomes(models, 1, kDraws)); }
};

TEST_F(DraftRatioCuda, TokensHaveTheModelsDistribution) {
  expect_law_of(models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1}));
  expect_law_of(models_of({0.25, 0.25, 0.25, 0.25}, {0.25, 0.25, 0.25, 0.25}));
  expect_law_of(models_of({0.5, 0.5, 0, 0}, {0, 0, 0.3, 0.7}));  // all are rejected
  expect_law_of(models_of({0.1, 0, 0.6, 0.3}, {0.2, 0.5, 0.3, 0}));
  Models own_ids = models_of({0.1, 0.2, 0.05, 0.3, 0.15, 0.2}, {0.5, 0.2, 0.3});
  own_ids.ids = {5, 0, 2};
  expect_law_of(own_ids);
}

TEST_F(DraftRatioCuda, UnderEachRuleOnTheDraw) {
  for (const Models& models : models_under_rules()) {
    expect_law_of(models);
  }
}

// Rows of several tiles and chunks, with and without cuts that leave long lists.
TEST_F(DraftRatioCuda, LongRowsAreTheReference) {
  constexpr int32_t kVocab = 20011;
  constexpr int32_t kSeeds = 100;
  for (const Models& models : long_models(kVocab)) {
    const std::vector<Outcome> got = outcomes(models, 1, kSeeds);
    EXPECT_EQ(got, references(models, kSeeds, {}));
    const auto rejected =
        std::count_if(got.begin(), got.end(), [](const Outcome& o) { return o.draft != o.token; });
    EXPECT_GT(rejected, kSeeds / 10);
    EXPECT_LT(rejected, kSeeds);
  }
}

TEST_F(DraftRatioCuda, ARowsTokensAreItsOwn) {
  Models models;
  models.target = normals(9000, 5, 2.0F);
  models.drafter = normals(9000, 6, 2.0F);
  models.params.temperature = 1.0F;
  models.params.top_p = 0.9F;
  const std::vector<Outcome> together = outcomes(models, 10, 32);
  for (int32_t i = 0; i < 32; ++i) {
    EXPECT_EQ(outcomes(models, 10 + static_cast<uint64_t>(i), 1).front(),
              together[static_cast<size_t>(i)]);
  }
}

TEST_F(DraftRatioCuda, LogprobsAreThoseOfTheModel) {
  Models models = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  models.params.num_logprobs = 0;
  int32_t num_rejected = 0;
  for (const Outcome& outcome : outcomes(models, 1, 50)) {
    EXPECT_NEAR(outcome.logprob, std::log(outcome.token == 0 ? 0.2 : 0.4), 1e-5);
    num_rejected += outcome.draft != outcome.token ? 1 : 0;
  }
  EXPECT_GT(num_rejected, 5);
}

TEST_F(DraftRatioCuda, GreedyRowsAndRowsWithoutADraft) {
  Models greedy;
  greedy.target = {1.0F, 3.0F, 3.0F, 2.0F};
  greedy.drafter = {0.0F, 1.0F, 5.0F, 5.0F};
  for (const Outcome& outcome : outcomes(greedy, 1, 20)) {
    EXPECT_EQ(outcome.draft, 2);
    EXPECT_EQ(outcome.token, 1);
  }
  Models bad = models_of({0.2, 0.4, 0.4}, {0.6, 0.3, 0.1});
  bad.drafter[1] = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> left = testing::survivors_of(bad.target, bad.params);
  const std::vector<Outcome> got = outcomes(bad, 1, 50);
  for (size_t i = 0; i < got.size(); ++i) {
    testing::SampleRow row;
    row.params = bad.params;
    row.params.seed = 1 + i;
    row.tokens.assign(kPosition + 1, 0);
    EXPECT_EQ(got[i].draft, -1);
    EXPECT_EQ(got[i].token, testing::draw_from(left, row));
  }
}

}  // namespace
}  // namespace warprow
