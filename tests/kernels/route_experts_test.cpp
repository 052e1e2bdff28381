// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/route_experts.h"

#include "base/check.h"
#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

constexpr int32_t kUnwritten = -7;

struct Routing {
  std::vector<float> weights;
  std::vector<int32_t> first;
  std::vector<int32_t> slots;
  std::vector<int32_t> places;

  // The experts of a row's slots, by their places.
  [[nodiscard]] std::vector<int32_t> experts_of(int64_t row, int32_t num_chosen) const {
    std::vector<int32_t> experts;
    for (int32_t j = 0; j < num_chosen; ++j) {
      const int32_t place = places[static_cast<size_t>(row * num_chosen + j)];
      const auto behind = std::upper_bound(first.begin(), first.end(), place);
      experts.push_back(static_cast<int32_t>(behind - first.begin()) - 1);
    }
    return experts;
  }
};

struct Router {
  int32_t num_experts;
  int32_t num_chosen;
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;
  std::vector<float> bias = {};
  std::vector<float> expert_scales = {};
  int32_t num_groups = 1;
  int32_t chosen_groups = 1;
  float scale = 1.0F;

  Routing operator()(const std::vector<float>& logits, const int32_t* num_rows = nullptr) const {
    const int64_t rows = static_cast<int64_t>(logits.size()) / num_experts;
    const auto num_slots = static_cast<size_t>(rows * num_chosen);
    Routing out{std::vector<float>(num_slots, kUnwritten),
                std::vector<int32_t>(static_cast<size_t>(num_experts) + 1, kUnwritten),
                std::vector<int32_t>(num_slots, kUnwritten),
                std::vector<int32_t>(num_slots, kUnwritten)};
    RouteExpertsArgs args;
    args.logits = make_view(logits.data(), rows, static_cast<int64_t>(num_experts));
    args.weights = make_view(out.weights.data(), rows, static_cast<int64_t>(num_chosen));
    args.lists = {num_experts,
                  num_chosen,
                  make_view(out.first.data(), static_cast<int64_t>(num_experts) + 1),
                  make_view(out.slots.data(), static_cast<int64_t>(num_slots)),
                  make_view(out.places.data(), static_cast<int64_t>(num_slots)),
                  num_rows};
    args.scores = scores;
    args.normalise = normalise;
    if (!bias.empty()) {
      args.bias = make_view(bias.data(), int64_t{num_experts});
    }
    if (!expert_scales.empty()) {
      args.expert_scales = make_view(expert_scales.data(), int64_t{num_experts});
    }
    args.num_groups = num_groups;
    args.chosen_groups = chosen_groups;
    args.scale = scale;
    CpuHarness cpu;
    route_experts(*cpu.stream, args);
    return out;
  }
};

// By falling logit, of equal ones the lower first.
std::vector<int32_t> sorted_experts(const float* logits, int32_t num_experts) {
  std::vector<int32_t> order(static_cast<size_t>(num_experts));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(
      order.begin(), order.end(), [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  return order;
}

void expect_weights(const Router& router, const float* logits, const float* weights) {
  const std::vector<int32_t> order = sorted_experts(logits, router.num_experts);
  const auto mass = [&](int32_t e) { return std::exp(double{logits[e]} - logits[order[0]]); };
  double sum = 0;
  double chosen = 0;
  for (int32_t j = 0; j < router.num_experts; ++j) {
    const double m = mass(order[static_cast<size_t>(j)]);
    sum += m;
    chosen += j < router.num_chosen ? m : 0;
  }
  const bool over_all = router.scores == RouterScores::kSoftmax && !router.normalise;
  for (int32_t j = 0; j < router.num_chosen; ++j) {
    const double expected = mass(order[static_cast<size_t>(j)]) / (over_all ? sum : chosen);
    ASSERT_NEAR(weights[j], expected, 1e-5 * expected + 1e-30) << "choice " << j;
  }
}

TEST(RouteExperts, LiteralExample) {
  const Router router{4, 2, RouterScores::kSoftmax, true};
  const float ln2 = std::log(2.0F);
  // Row 0 takes experts 2 and 0, row 1 takes 3 and 2, row 2 takes 0 and 1.
  const Routing r = router({ln2, -9, 2 * ln2, 0, -9, -9, ln2, ln2 * 3, 5, 5, 4, 4});
  EXPECT_EQ(r.first, (std::vector<int32_t>{0, 2, 3, 5, 6}));
  EXPECT_EQ(r.slots, (std::vector<int32_t>{1, 4, 5, 0, 3, 2}));
  EXPECT_EQ(r.places, (std::vector<int32_t>{3, 0, 5, 4, 1, 2}));
  const std::vector<float> weights{2.0F / 3, 1.0F / 3, 0.8F, 0.2F, 0.5F, 0.5F};
  for (size_t i = 0; i < weights.size(); ++i) {
    EXPECT_NEAR(r.weights[i], weights[i], 1e-6F);
  }
}

TEST(RouteExperts, AgreesWithSortedDoubles) {
  for (const RouterScores scores : {RouterScores::kSoftmax, RouterScores::kSoftmaxOfChosen}) {
    for (const bool normalise : {false, true}) {
      for (const auto& [num_experts, num_chosen] : {std::pair{1, 1},
                                                    std::pair{8, 2},
                                                    std::pair{8, 8},
                                                    std::pair{128, 8},
                                                    std::pair{61, 5},
                                                    std::pair{1024, 32}}) {
        const Router router{num_experts, num_chosen, scores, normalise};
        constexpr int64_t kRows = 37;
        const auto logits = random_floats(static_cast<size_t>(kRows * num_experts), 3, 2.0F);
        const Routing r = router(logits);
        for (int64_t t = 0; t < kRows; ++t) {
          const float* row = logits.data() + t * num_experts;
          std::vector<int32_t> expected = sorted_experts(row, num_experts);
          expected.resize(static_cast<size_t>(num_chosen));
          ASSERT_EQ(r.experts_of(t, num_chosen), expected);
          expect_weights(router, row, r.weights.data() + t * num_chosen);
        }
        // Places are a permutation, ascending by slot within an expert.
        for (int32_t e = 0; e < num_experts; ++e) {
          const auto begin = r.slots.begin() + r.first[static_cast<size_t>(e)];
          const auto end = r.slots.begin() + r.first[static_cast<size_t>(e) + 1];
          ASSERT_TRUE(std::is_sorted(begin, end));
        }
        for (size_t slot = 0; slot < r.places.size(); ++slot) {
          ASSERT_EQ(r.slots[static_cast<size_t>(r.places[slot])], static_cast<int32_t>(slot));
        }
      }
    }
  }
}

TEST(RouteExperts, TiesGoToTheLowerExpert) {
  const Router router{6, 3};
  EXPECT_EQ(router({1, 1, 1, 1, 1, 1}).experts_of(0, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(router({0, 2, 1, 2, 1, 1}).experts_of(0, 3), (std::vector<int32_t>{1, 3, 2}));
  EXPECT_EQ(router({0, -0.0F, 0, 1, 0, 0}).experts_of(0, 3), (std::vector<int32_t>{3, 0, 1}));
}

TEST(RouteExperts, AllRowsOfOneExpertAndNoneOfOthers) {
  const Router router{5, 1};
  std::vector<float> logits;
  for (int row = 0; row < 40; ++row) {
    logits.insert(logits.end(), {0, 1, 2, 9, 3});
  }
  const Routing r = router(logits);
  EXPECT_EQ(r.first, (std::vector<int32_t>{0, 0, 0, 0, 40, 40}));
  std::vector<int32_t> ascending(40);
  std::iota(ascending.begin(), ascending.end(), 0);
  EXPECT_EQ(r.slots, ascending);
  EXPECT_EQ(r.places, ascending);
}

TEST(RouteExperts, NoRows) {
  EXPECT_EQ((Router{3, 2}({}).first), (std::vector<int32_t>{0, 0, 0, 0}));
}

TEST(RouteExperts, RowsPastTheRealOnesChooseNoExpert) {
  const Router router{8, 2};
  const auto logits = random_floats(static_cast<size_t>(8 * 10), 5);
  for (const int32_t real : {0, 1, 7, 10, 12}) {
    const size_t rows = std::min<size_t>(10, static_cast<size_t>(real));
    const Routing part = router(logits, &real);
    const Routing alone = router({logits.begin(), logits.begin() + static_cast<long>(rows) * 8});
    EXPECT_EQ(part.first, alone.first);
    for (size_t slot = 0; slot < part.slots.size(); ++slot) {
      const bool is_real = slot < 2 * rows;
      EXPECT_EQ(part.slots[slot], is_real ? alone.slots[slot] : kUnwritten);
      EXPECT_EQ(part.places[slot], is_real ? alone.places[slot] : kUnwritten);
      EXPECT_EQ(part.weights[slot], is_real ? alone.weights[slot] : float{kUnwritten});
    }
  }
}

TEST(RouteExperts, ARowsChoiceAndWeightsDependOnItAlone) {
  const Router router{128, 8, RouterScores::kSoftmax, true};
  const auto logits = random_floats(static_cast<size_t>(128 * 50), 9);
  const Routing all = router(logits);
  for (int64_t t = 0; t < 50; ++t) {
    const auto row = logits.begin() + t * 128;
    const Routing alone = router({row, row + 128});
    EXPECT_EQ(all.experts_of(t, 8), alone.experts_of(0, 8));
    EXPECT_TRUE(
        std::equal(alone.weights.begin(), alone.weights.end(), all.weights.begin() + t * 8));
  }
}

// Any experts, but different ones, and no harm to other rows.
TEST(RouteExperts, NanLogitsSpoilTheirRowOnly) {
  const Router router{6, 3, RouterScores::kSoftmax, true};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float inf = std::numeric_limits<float>::infinity();
  const Routing r = router(
      {nan, nan, nan, nan, nan, nan, 1, 2, nan, 4, 5, 6, inf, 1, -inf, 0, 0, 0, 3, 2, 1, 0, 0, 0});
  for (int64_t t = 0; t < 4; ++t) {
    std::vector<int32_t> experts = r.experts_of(t, 3);
    std::ranges::sort(experts);
    EXPECT_EQ(std::ranges::adjacent_find(experts), experts.end());
    EXPECT_GE(experts.front(), 0);
    EXPECT_LT(experts.back(), 6);
  }
  EXPECT_EQ(r.experts_of(3, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_NEAR(r.weights[9] + r.weights[10] + r.weights[11], 1.0F, 1e-6F);
}

// Row 0: sigmoids 0.5, 0.5, 0.5, ~1; the bias alone decides, and takes no part in the weights.
TEST(RouteExperts, ABiasDecidesTheChoiceOfSigmoidsAlone) {
  Router router{4, 2, RouterScores::kSigmoid};
  router.bias = {0.0F, 0.75F, 0.6F, 0.0F};
  const Routing plain = router({0, 0, 0, 20});
  EXPECT_EQ(plain.experts_of(0, 2), (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(plain.weights, (std::vector<float>{0.5F, 0.5F}));
  router.bias = {0.0F, 0.25F, 0.0F, 0.25F};
  router.normalise = true;
  router.scale = 3.0F;
  router.expert_scales = {1, 2, 4, 8};
  const Routing scaled = router({0, 0, 0, 0});
  EXPECT_EQ(scaled.experts_of(0, 2), (std::vector<int32_t>{1, 3}));
  EXPECT_EQ(scaled.weights, (std::vector<float>{3, 12}));
}

// Without a bias the order of sigmoids is that of logits, and infinite ones are no exception.
TEST(RouteExperts, SigmoidsOfExtremeLogits) {
  Router router{4, 3, RouterScores::kSigmoid, true};
  const float inf = std::numeric_limits<float>::infinity();
  const Routing r = router({-inf, inf, 0, -3000});
  EXPECT_EQ(r.experts_of(0, 3), (std::vector<int32_t>{1, 2, 0}));
  EXPECT_NEAR(r.weights[0], 2.0F / 3, 1e-6F);
  EXPECT_EQ(r.weights[2], 0.0F);
  const Routing none = router({-inf, -inf, -inf, -inf});  // sums of zero are not divided by
  EXPECT_EQ(none.experts_of(0, 3), (std::vector<int32_t>{0, 1, 2}));
  EXPECT_EQ(none.weights, (std::vector<float>(3, 0.0F)));
}

// A group's score is the sum of its two best. Of equal groups the lower one is chosen.
TEST(RouteExperts, ExpertsOfChosenGroupsOnly) {
  Router router{6, 2, RouterScores::kSigmoid};
  router.num_groups = 3;
  router.chosen_groups = 1;
  // The best expert, 4, is in a group whose second one is worse.
  EXPECT_EQ(router({0, 0, 1, 1, 3, 0}).experts_of(0, 2), (std::vector<int32_t>{2, 3}));
  EXPECT_EQ(router({1, 1, 1, 1, 1, 1}).experts_of(0, 2), (std::vector<int32_t>{0, 1}));
  router.chosen_groups = 2;
  EXPECT_EQ(router({0, 0, 1, 1, 3, 0}).experts_of(0, 2), (std::vector<int32_t>{4, 2}));
  router.num_chosen = 4;
  EXPECT_EQ(router({5, 5, 1, 1, 3, 3}).experts_of(0, 4), (std::vector<int32_t>{0, 1, 4, 5}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<int32_t> any = router({nan, 0, nan, nan, 1, nan}).experts_of(0, 4);
  std::ranges::sort(any);
  EXPECT_EQ(std::ranges::adjacent_find(any), any.end());
}

// Against the rule in doubles, over many rows.
TEST(RouteExperts, GroupsAgreeWithTheRule) {
  Router router{24, 5, RouterScores::kSigmoid, true};
  router.num_groups = 6;
  router.chosen_groups = 3;
  router.bias = random_floats(24, 11, 0.5F);
  const auto logits = random_floats(static_cast<size_t>(24 * 50), 12, 2.0F);
  const Routing r = router(logits);
  for (int64_t t = 0; t < 50; ++t) {
    std::vector<float> c(24);
    std::vector<double> s(24);
    for (size_t e = 0; e < 24; ++e) {
      s[e] = 1.0 / (1.0 + std::exp(-double{logits[static_cast<size_t>(t) * 24 + e]}));
      c[e] = static_cast<float>(s[e] + router.bias[e]);
    }
    std::vector<float> groups(6);
    for (size_t g = 0; g < 6; ++g) {
      std::vector<float> part(c.begin() + static_cast<long>(4 * g),
                              c.begin() + static_cast<long>(4 * g) + 4);
      std::ranges::sort(part, std::greater<>());
      groups[g] = part[0] + part[1];
    }
    const std::vector<int32_t> order = sorted_experts(groups.data(), 6);
    for (size_t i = 3; i < 6; ++i) {
      std::fill_n(c.begin() + 4 * order[i], 4, -1e9F);
    }
    std::vector<int32_t> expected = sorted_experts(c.data(), 24);
    expected.resize(5);
    ASSERT_EQ(r.experts_of(t, 5), expected) << t;
    double sum = 0;
    for (const int32_t e : expected) {
      sum += s[static_cast<size_t>(e)];
    }
    for (size_t j = 0; j < 5; ++j) {
      ASSERT_NEAR(r.weights[static_cast<size_t>(t) * 5 + j],
                  s[static_cast<size_t>(expected[j])] / sum,
                  1e-5);
    }
  }
}

TEST(RouteExperts, MisuseIsCaught) {
  const ScopedCheckThrows throws;
  EXPECT_THROW((Router{2, 3}({1, 2})), CheckFailure);
  EXPECT_THROW((Router{40, 33}(std::vector<float>(40))), CheckFailure);
  EXPECT_THROW((Router{1025, 2}(std::vector<float>(1025))), CheckFailure);
}

}  // namespace
}  // namespace warprow
