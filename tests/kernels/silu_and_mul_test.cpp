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

TEST(SiluAndMul, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 15, 16, 33, 1536}) {
      const int64_t rows = 3;
      const auto x = random_floats(static_cast<size_t>(rows * 2 * width), 11, 8.0F);
      std::vector<float> out(static_cast<size_t>(rows * width));
      silu_and_mul(*cpu.stream,
                   {make_view(x.data(), rows, 2 * width), make_view(out.data(), rows, width)});
      for (int64_t t = 0; t < rows; ++t) {
        for (int64_t i = 0; i < width; ++i) {
          const double gate = x[t * 2 * width + i];
          const double expected = gate / (1.0 + std::exp(-gate)) * x[t * 2 * width + width + i];
          ASSERT_NEAR(out[t * width + i], expected, 5e-7 * std::abs(expected))
              << cpu_isa_name(isa) << " " << gate;
        }
      }
    }
  }
}

TEST(SiluAndMul, ExtremesAndNan) {
  CpuHarness cpu;
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> x{
      -1000.0F, -100.0F, 0.0F, 100.0F, 3e38F, std::nanf(""), inf, 1, 1, 1, 1, 1, 1, 1};
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    std::vector<float> out(7);
    silu_and_mul(*cpu.stream, {make_view(x.data(), 1, 14), make_view(out.data(), 1, 7)});
    EXPECT_EQ(out[0], 0.0F);
    EXPECT_NEAR(out[1], 0.0F, 1e-30F);
    EXPECT_EQ(out[2], 0.0F);
    EXPECT_EQ(out[3], 100.0F);
    EXPECT_EQ(out[4], 3e38F);
    EXPECT_TRUE(std::isnan(out[5]));
    EXPECT_EQ(out[6], inf);
  }
}

TEST(SiluAndMul, SameResultWhereverAValueStands) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    const int64_t width = 37;
    std::vector<float> x(2 * width, -1.2345F);
    std::vector<float> out(width);
    silu_and_mul(*cpu.stream,
                 {make_view<const float>(x.data(), 1, 2 * width), make_view(out.data(), 1, width)});
    EXPECT_EQ(out, std::vector<float>(width, out[0]));
  }
}

}  // namespace
}  // namespace warprow
