// SPDX-License-Identifier: Apache-2.0
#include "kernels/experts/combine_experts.h"

#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// y of rows with these weights and places.
std::vector<float> combine(const std::vector<float>& x,
                           const std::vector<float>& weights,
                           std::vector<int32_t> places,
                           int32_t num_chosen,
                           std::vector<float> y,
                           bool add,
                           const int32_t* num_rows = nullptr) {
  testing::CpuHarness cpu;
  const auto slots = static_cast<int64_t>(places.size());
  const int64_t rows = slots / num_chosen;
  const int64_t width = rows == 0 ? 8 : static_cast<int64_t>(y.size()) / rows;
  CombineExpertsArgs args;
  args.x = make_view(x.data(), slots, width);
  args.weights = make_view(weights.data(), rows, int64_t{num_chosen});
  args.y = make_view(y.data(), rows, width);
  args.lists.num_experts = num_chosen;
  args.lists.num_chosen = num_chosen;
  args.lists.places = make_view(places.data(), slots);
  args.lists.num_rows = num_rows;
  args.add = add;
  combine_experts(*cpu.stream, args);
  return y;
}

TEST(CombineExperts, LiteralExample) {
  std::vector<float> x;
  for (const float place : {1.0F, 2.0F, 4.0F, 8.0F}) {
    x.insert(x.end(), 8, place);
  }
  const std::vector<float> weights{0.5F, 0.25F, 1.0F, 2.0F};
  const std::vector<int32_t> places{3, 0, 1, 2};
  std::vector<float> stored(8, 4.25F);
  stored.insert(stored.end(), 8, 10.0F);
  EXPECT_EQ(combine(x, weights, places, 2, std::vector<float>(16, 3.0F), false), stored);
  std::vector<float> added(8, 7.25F);
  added.insert(added.end(), 8, 13.0F);
  EXPECT_EQ(combine(x, weights, places, 2, std::vector<float>(16, 3.0F), true), added);
  const int32_t one = 1;
  std::fill(stored.begin() + 8, stored.end(), 3.0F);
  EXPECT_EQ(combine(x, weights, places, 2, std::vector<float>(16, 3.0F), false, &one), stored);
  EXPECT_TRUE(combine({}, {}, {}, 2, {}, true).empty());
}

TEST(CombineExperts, AgreesWithDoubleOnEveryIsa) {
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const size_t width : {8, 24, 136}) {
      constexpr size_t kRows = 9;
      constexpr size_t kChosen = 5;
      const auto x = testing::random_floats(kRows * kChosen * width, 2);
      const auto weights = testing::random_floats(kRows * kChosen, 3);
      const auto before = testing::random_floats(kRows * width, 4);
      std::vector<int32_t> places(kRows * kChosen);
      std::iota(places.begin(), places.end(), 0);
      std::shuffle(places.begin(), places.end(), std::mt19937(5));
      const auto y = combine(x, weights, places, kChosen, before, true);
      for (size_t t = 0; t < kRows; ++t) {
        for (size_t i = 0; i < width; ++i) {
          double sum = before[t * width + i];
          for (size_t j = 0; j < kChosen; ++j) {
            const auto place = static_cast<size_t>(places[t * kChosen + j]);
            sum += double{weights[t * kChosen + j]} * x[place * width + i];
          }
          ASSERT_NEAR(y[t * width + i], sum, 4e-6) << cpu_isa_name(isa) << ", width " << width;
        }
      }
    }
  }
}

}  // namespace
}  // namespace warprow
