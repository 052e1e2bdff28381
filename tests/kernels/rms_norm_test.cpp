// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/rms_norm.h"

#include "tests/kernels/cpu_harness.h"
#include "tests/support/rms_norm_case.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::first_mismatch;
using testing::HostMemory;
using testing::random_floats;
using testing::RmsNormCase;

constexpr float kEps = 1e-5F;

TEST(RmsNorm, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 7, 16, 64, 100, 576, 1031}) {
      const RmsNormCase c{.rows = 3, .width = width, .gap = width % 2 == 0 ? 3 : 0, .eps = kEps};
      HostMemory memory;
      const RmsNormArgs args = c.args(memory);
      rms_norm(*cpu.stream, args);
      EXPECT_EQ(first_mismatch(testing::floats_of(args.out, c.matrix()), c.reference(), {1e-6}), -1)
          << "width " << width;
    }
  }
}

TEST(RmsNorm, MayRunInPlace) {
  CpuHarness cpu;
  const RmsNormCase c{.rows = 5, .width = 40, .eps = kEps};
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    HostMemory memory;
    RmsNormArgs args = c.args(memory);
    args.out =
        c.matrix().view(c.in, const_cast<std::byte*>(static_cast<const std::byte*>(args.x.data)));
    rms_norm(*cpu.stream, args);
    EXPECT_EQ(first_mismatch(testing::floats_of(args.out, c.matrix()), c.reference(), {1e-6}), -1);
  }
}

TEST(RmsNorm, RowDoesNotDependOnBatchOrThreads) {
  const int64_t rows = 50;
  const int64_t width = 576;
  const auto x = random_floats(rows * width, 6);
  const auto weight = random_floats(width, 7);
  std::vector<float> together(x.size());
  std::vector<float> alone(x.size());
  CpuHarness two(2);
  rms_norm(*two.stream,
           {make_view(x.data(), rows, width),
            make_view(weight.data(), width),
            make_view(together.data(), rows, width),
            kEps});
  CpuHarness one(1);
  for (int64_t t = 0; t < rows; ++t) {
    rms_norm(*one.stream,
             {make_view(&x[t * width], 1, width),
              make_view(weight.data(), width),
              make_view(&alone[t * width], 1, width),
              kEps});
  }
  EXPECT_EQ(together, alone);
}

TEST(RmsNorm, RefusesUnequalWidths) {
  CpuHarness cpu;
  std::vector<float> a(8);
  const ScopedCheckThrows throws;
  EXPECT_THROW(rms_norm(*cpu.stream,
                        {make_view<const float>(a.data(), 2, 4),
                         make_view<const float>(a.data(), 3),
                         make_view(a.data(), 2, 4),
                         kEps}),
               CheckFailure);
}

}  // namespace
}  // namespace warprow
