// SPDX-License-Identifier: Apache-2.0
#include "kernels/activation/act_and_mul.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/support/gated_case.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::first_mismatch;
using testing::HostMemory;
using testing::SiluCase;

TEST(SiluAndMul, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 15, 16, 33, 1536}) {
      const SiluCase c{{.rows = 3, .width = width, .scale = 8.0F}};
      HostMemory memory;
      const auto args = c.args(memory);
      silu_and_mul(*cpu.stream, args);
      EXPECT_EQ(first_mismatch(testing::floats_of(args.out, c.output()), c.reference(), {5e-7}), -1)
          << cpu_isa_name(isa) << ", width " << width;
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
