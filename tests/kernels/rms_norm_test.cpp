// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm/rms_norm.h"

#include "tests/kernels/cpu_harness.h"

#include <cmath>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::random_floats;

constexpr float kEps = 1e-5F;

void expect_norm(const float* x, const float* weight, const float* out, int64_t width) {
  double squares = 0.0;
  for (int64_t i = 0; i < width; ++i) {
    squares += static_cast<double>(x[i]) * x[i];
  }
  const double factor =
      1.0 / std::sqrt(squares / static_cast<double>(width) + static_cast<double>(kEps));
  for (int64_t i = 0; i < width; ++i) {
    const double expected = x[i] * factor * weight[i];
    ASSERT_NEAR(out[i], expected, 1e-6 * std::abs(expected))
        << "width " << width << " element " << i;
  }
}

TEST(RmsNorm, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {1, 7, 16, 64, 100, 576, 1031}) {
      const int64_t rows = 3;
      const auto x = random_floats(static_cast<size_t>(rows * width), 1, 3.0F);
      const auto weight = random_floats(static_cast<size_t>(width), 2);
      std::vector<float> out(x.size());
      rms_norm(*cpu.stream,
               {.x = make_view(x.data(), rows, width),
                .weight = make_view(weight.data(), width),
                .out = make_view(out.data(), rows, width),
                .eps = kEps});
      for (int64_t t = 0; t < rows; ++t) {
        expect_norm(&x[t * width], weight.data(), &out[t * width], width);
      }
    }
  }
}

TEST(RmsNorm, MayRunInPlace) {
  CpuHarness cpu;
  const int64_t rows = 5;
  const int64_t width = 40;
  const auto x = random_floats(rows * width, 3);
  const auto weight = random_floats(width, 5);
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    auto out = x;
    const View<float, 2> both = make_view(out.data(), rows, width);
    rms_norm(*cpu.stream, {both, make_view(weight.data(), width), both, kEps});
    for (int64_t t = 0; t < rows; ++t) {
      expect_norm(&x[t * width], weight.data(), &out[t * width], width);
    }
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
