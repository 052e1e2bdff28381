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
using testing::GeluCase;
using testing::HostMemory;

TEST(GeluAndMul, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 15, 16, 33, 1536}) {
      const GeluCase c{{.rows = 3, .width = width, .scale = 2.0F}};
      HostMemory memory;
      const auto args = c.args(memory);
      gelu_and_mul(*cpu.stream, args);
      EXPECT_EQ(
          first_mismatch(testing::floats_of(args.out, c.output()), c.reference(), {1e-6, 1e-6}), -1)
          << cpu_isa_name(isa) << ", width " << width;
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
