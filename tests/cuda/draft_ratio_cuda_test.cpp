// SPDX-License-Identifier: Apache-2.0
// Drafts that are drawn and verified by ratio on CUDA: the law of the tokens, and the outcomes of the rule by its definition.
#include "tests/cuda/cuda_test.h"
#include "tests/support/draft_ratio_case.h"

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
  Draws draws() {
    return [this](const Models& models, uint64_t seed, int32_t n) {
      return outcomes(models, seed, n);
    };
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
TEST_F(DraftRatioCuda, LongRowsAreTheReference) { expect_references_of_long_rows(draws(), 20011); }

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

TEST_F(DraftRatioCuda, LogprobsAreThoseOfTheModel) { expect_logprobs_of_the_model(draws()); }

TEST_F(DraftRatioCuda, GreedyRowsAndRowsWithoutADraft) {
  expect_largest_logits_of_greedy_rows(draws());
  expect_ordinary_draws_without_drafts(draws(), std::numeric_limits<float>::quiet_NaN());
}

}  // namespace
}  // namespace warprow
