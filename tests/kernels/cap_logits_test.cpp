// SPDX-License-Identifier: Apache-2.0
#include "kernels/logits/cap_logits.h"

#include "tests/kernels/cpu_harness.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;

TEST(CapLogits, AgreesWithDoubleOnEveryIsaAndLeavesPads) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 15, 16, 33, 1000}) {
      const auto stride = static_cast<size_t>(width) + 3;
      const std::vector<float> x = testing::random_floats(2 * stride, 5, 20.0F);
      for (const float cap : {0.0F, 30.0F}) {
        std::vector<float> y = x;
        cap_logits(*cpu.stream,
                   {make_strided(y.data(), 2, width, static_cast<int64_t>(stride)), 1.5F, cap});
        for (size_t i = 0; i < y.size(); ++i) {
          const double v = x[i] / 1.5;
          const double want = cap == 0.0F ? v : cap * std::tanh(v / cap);
          const bool pad = i % stride >= static_cast<size_t>(width);
          ASSERT_NEAR(y[i], pad ? double{x[i]} : want, 1e-5) << cpu_isa_name(isa) << " at " << i;
        }
      }
    }
  }
}

TEST(CapLogits, Extremes) {
  CpuHarness cpu;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    std::vector<float> x{-kInfinity, -1e30F, 0.0F, 1e30F, kInfinity, std::nanf("")};
    cap_logits(*cpu.stream, {make_view(x.data(), 1, 6), 1.0F, 30.0F});
    EXPECT_EQ(x[0], -30.0F);
    EXPECT_EQ(x[1], -30.0F);
    EXPECT_EQ(x[2], 0.0F);
    EXPECT_EQ(x[3], 30.0F);
    EXPECT_EQ(x[4], 30.0F);
    EXPECT_TRUE(std::isnan(x[5]));
  }
}

}  // namespace
}  // namespace warprow
