// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/act_and_mul.h"
#include "tests/kernels/cpu_harness.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

double gelu(double v) {
  const double u = std::sqrt(2.0 / std::acos(-1.0)) * (v + 0.044715 * v * v * v);
  return 0.5 * v * (1.0 + std::tanh(u));
}

TEST(GeluAndMul, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 15, 16, 33, 1536}) {
      const int64_t rows = 3;
      const auto x = random_floats(static_cast<size_t>(rows * 2 * width), 11, 2.0F);
      std::vector<float> out(static_cast<size_t>(rows * width));
      gelu_and_mul(*cpu.stream,
                   {make_view(x.data(), rows, 2 * width), make_view(out.data(), rows, width)});
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          const double expected = gelu(x[t * 2 * width + i]) * x[t * 2 * width + width + i];
          ASSERT_NEAR(out[t * width + i], expected, 1e-6 * std::abs(expected) + 1e-6)
              << cpu_isa_name(isa) << " " << x[t * 2 * width + i];
        }
      }
    }
  }
}

TEST(GeluAndMul, Extremes) {
  CpuHarness cpu;
  const std::vector<float> x{-1000.0F, -12.0F, 0.0F, 1.0F, 100.0F, std::nanf(""), 1, 1, 1, 2, 1, 1};
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    std::vector<float> out(6);
    gelu_and_mul(*cpu.stream, {make_view(x.data(), 1, 12), make_view(out.data(), 1, 6)});
    EXPECT_EQ(out[0], 0.0F);
    EXPECT_NEAR(out[1], 0.0F, 1e-30F);
    EXPECT_EQ(out[2], 0.0F);
    EXPECT_FLOAT_EQ(out[3], 1.6823840F);
    EXPECT_EQ(out[4], 100.0F);
    EXPECT_TRUE(std::isnan(out[5]));
  }
}

}  // namespace
}  // namespace warprow
