// SPDX-License-Identifier: Apache-2.0
// The row operations that only encoders have.
#include "tests/kernels/cpu_harness.h"
#include "tests/support/encoder_ops_case.h"
#include "tests/support/gated_case.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CpuHarness;
using testing::first_mismatch;
using testing::floats_of;
using testing::GeluInPlaceCase;
using testing::HostMemory;
using testing::LayerNormCase;
using testing::PlaceEmbeddingCase;
using testing::random_floats;

TEST(LayerNorm, AgreesWithDoubleOnEveryIsaAndWidth) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const int64_t width : {2, 7, 16, 64, 100, 384, 1031}) {
      const LayerNormCase c{.rows = 3,
                            .width = width,
                            .gap = width % 2 == 0 ? 3 : 0,
                            .adds = width % 3 != 0,
                            .biased = width != 64};
      HostMemory memory;
      const LayerNormArgs args = c.args(memory);
      layer_norm(*cpu.stream, args);
      EXPECT_EQ(first_mismatch(floats_of(args.out, c.matrix()), c.reference(), {1e-5, 1e-5}), -1)
          << "width " << width;
    }
  }
}

TEST(LayerNorm, MayRunInPlace) {
  CpuHarness cpu;
  const LayerNormCase c{.rows = 5, .width = 40};
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const bool over_add : {false, true}) {
      HostMemory memory;
      LayerNormArgs args = c.args(memory);
      const void* over = over_add ? args.add.data : args.x.data;
      args.out = c.matrix().view(c.in, const_cast<std::byte*>(static_cast<const std::byte*>(over)));
      layer_norm(*cpu.stream, args);
      EXPECT_EQ(first_mismatch(floats_of(args.out, c.matrix()), c.reference(), {1e-5, 1e-5}), -1);
    }
  }
}

TEST(LayerNorm, RowDoesNotDependOnBatchOrThreads) {
  const int64_t rows = 50;
  const int64_t width = 387;
  const auto x = random_floats(rows * width, 6);
  const auto weight = random_floats(width, 7);
  const auto norm = [&](CpuHarness& cpu, int64_t begin, int64_t count, std::vector<float>& out) {
    LayerNormArgs args;
    args.x = make_view(&x[begin * width], count, width);
    args.weight = make_view(weight.data(), width);
    args.bias = args.weight;
    args.out = make_view(&out[begin * width], count, width);
    layer_norm(*cpu.stream, args);
  };
  std::vector<float> together(x.size());
  std::vector<float> alone(x.size());
  CpuHarness two(2);
  norm(two, 0, rows, together);
  CpuHarness one(1);
  for (int64_t t = 0; t < rows; ++t) {
    norm(one, t, 1, alone);
  }
  EXPECT_EQ(together, alone);
}

TEST(Gelu, InPlaceAgreesWithDouble) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const bool exact : {false, true}) {
      for (const int64_t width : {1, 15, 16, 33, 1536}) {
        const GeluInPlaceCase c{.rows = 3, .width = width, .gap = width % 3, .exact = exact};
        HostMemory memory;
        const GeluArgs args = c.args(memory);
        gelu(*cpu.stream, args);
        EXPECT_EQ(first_mismatch(floats_of(args.x, c.matrix()), c.reference(), {1e-6, 1e-6}), -1)
            << cpu_isa_name(isa) << ", width " << width;
      }
    }
  }
}

// Every segment of the table that AVX-512 has, its ends, and where it ends.
TEST(Gelu, ExactIsWithin1e7EverywhereWithAvx512) {
  if (detected_cpu_isa() < CpuIsa::kAvx512) {
    GTEST_SKIP() << "this machine has no AVX-512";
  }
  CpuHarness cpu;
  const ScopedCpuIsa scope(CpuIsa::kAvx512);
  std::vector<float> x;
  for (int i = -4500; i <= 4500; ++i) {
    x.push_back(static_cast<float>(i) / 500.0F);
  }
  std::vector<float> y = x;
  gelu(*cpu.stream, {make_view(y.data(), 1, static_cast<int64_t>(y.size()))});
  for (size_t i = 0; i < x.size(); ++i) {
    const double v = x[i];
    const double expected = v / 2 * std::erfc(-v * std::sqrt(0.5));
    ASSERT_NEAR(y[i], expected, 1e-7 * std::max(1.0, std::abs(v))) << "at " << v;
  }
}

TEST(Gelu, NanStaysNanAndLargeValuesStay) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    std::vector<float> x{std::numeric_limits<float>::quiet_NaN(), 1e30F, -1e3F, 100.0F, 0.0F};
    gelu(*cpu.stream, {make_view(x.data(), 1, 5)});
    EXPECT_TRUE(std::isnan(x[0])) << cpu_isa_name(isa);
    x.erase(x.begin());
    EXPECT_EQ(x, (std::vector<float>{1e30F, 0.0F, 100.0F, 0.0F})) << cpu_isa_name(isa);
  }
}

TEST(Gelu, ExactGateAgreesWithDouble) {
  CpuHarness cpu;
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    const testing::ExactGeluCase c{{.rows = 3, .width = 100}};
    HostMemory memory;
    GeluAndMulArgs args = c.args(memory);
    args.exact = true;
    gelu_and_mul(*cpu.stream, args);
    EXPECT_EQ(first_mismatch(floats_of(args.out, c.output()), c.reference(), {1e-6, 2e-6}), -1);
  }
}

TEST(PlaceEmbedding, AddsWhatItsTablesHave) {
  CpuHarness cpu;
  for (const bool has_positions : {false, true}) {
    for (const bool has_segments : {false, true}) {
      const PlaceEmbeddingCase c{
          .width = 33, .has_positions = has_positions, .has_segments = has_segments};
      HostMemory memory;
      const PlaceEmbeddingArgs args = c.args(memory);
      place_embedding(*cpu.stream, args);
      const std::vector<float> got(args.x.data, args.x.data + c.toks * c.width);
      EXPECT_EQ(first_mismatch(got, c.reference(), {}), -1);
    }
  }
}

TEST(ResizeHeads, WidensWithZerosAndNarrows) {
  CpuHarness cpu;
  for (const auto& [from, to] : {std::pair{4, 7}, std::pair{7, 4}, std::pair{32, 64}}) {
    const testing::ResizeHeadsCase c{.from = from, .to = to};
    HostMemory memory;
    const ResizeHeadsArgs args = c.args(memory);
    resize_heads(*cpu.stream, args);
    EXPECT_EQ(first_mismatch(floats_of(args.out, c.output()), c.reference(), {}), -1);
  }
}

TEST(MeanRows, IsTheSameToTheBit) {
  CpuHarness cpu;
  for (const int64_t width : {1, 33, 64, 200}) {
    const testing::MeanRowsCase c{.width = width, .gap = width % 3};
    HostMemory memory;
    const MeanRowsArgs args = c.args(memory);
    mean_rows(*cpu.stream, args);
    const std::vector<float> got(args.out.data, args.out.data + c.ranges * width);
    EXPECT_EQ(first_mismatch(got, c.reference(), {}), -1);
  }
}

}  // namespace
}  // namespace warprow
