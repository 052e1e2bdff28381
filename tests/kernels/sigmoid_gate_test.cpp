// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/sigmoid_gate.h"

#include "tests/kernels/cpu_harness.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

TEST(SigmoidGate, LiteralExample) {
  CpuHarness cpu;
  const float ln3 = std::log(3.0F);
  const std::vector<float> x{1, 0, 9, 1, ln3, 9};  // rows of 2 in a stride of 3
  const std::vector<float> gate{0, 1};
  std::vector<float> y{2, 4, 7, 8, 16, 7};
  sigmoid_gate(*cpu.stream,
               {make_strided(x.data(), 2, 2, 3),
                make_view(gate.data(), 2),
                ActView(make_strided(y.data(), 2, 2, 3))});
  const std::vector<float> expected{1, 2, 7, 6, 12, 7};
  for (size_t i = 0; i < y.size(); ++i) {
    EXPECT_FLOAT_EQ(y[i], expected[i]);
  }
}

TEST(SigmoidGate, AgreesWithDoubleAndRowsDoNotMatterToEachOther) {
  CpuHarness cpu(3);
  for (const int64_t inputs : {1, 15, 16, 33, 2048}) {
    constexpr int64_t kRows = 37;
    constexpr int64_t kWidth = 5;
    const auto x = random_floats(static_cast<size_t>(kRows * inputs), 1);
    const auto gate = random_floats(static_cast<size_t>(inputs), 2, 0.1F);
    const auto before = random_floats(kRows * kWidth, 3);
    std::vector<float> y = before;
    const View<const float, 1> w = make_view(gate.data(), inputs);
    sigmoid_gate(*cpu.stream,
                 {make_view(x.data(), kRows, inputs), w, make_view(y.data(), kRows, kWidth)});
    for (int64_t t = 0; t < kRows; ++t) {
      double sum = 0;
      for (int64_t k = 0; k < inputs; ++k) {
        sum += double{gate[static_cast<size_t>(k)]} * x[static_cast<size_t>(t * inputs + k)];
      }
      std::vector<float> alone(before.begin() + t * kWidth, before.begin() + (t + 1) * kWidth);
      for (int64_t i = 0; i < kWidth; ++i) {
        ASSERT_NEAR(y[static_cast<size_t>(t * kWidth + i)],
                    alone[static_cast<size_t>(i)] / (1.0 + std::exp(-sum)),
                    1e-5);
      }
      sigmoid_gate(
          *cpu.stream,
          {make_view(x.data() + t * inputs, 1, inputs), w, make_view(alone.data(), 1, kWidth)});
      ASSERT_TRUE(std::equal(alone.begin(), alone.end(), y.begin() + t * kWidth)) << inputs;
    }
  }
}

TEST(SigmoidGate, NoRowsIsNothing) {
  CpuHarness cpu;
  const std::vector<float> gate{1};
  sigmoid_gate(*cpu.stream,
               {View<const float, 2>{nullptr, {0, 1}, {1, 1}},
                make_view(gate.data(), 1),
                View<float, 2>{nullptr, {0, 3}, {3, 1}}});
}

}  // namespace
}  // namespace warprow
