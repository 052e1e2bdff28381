// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/linear.h"

#include "base/check.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/norm/rms_norm.h"
#include "tests/kernels/cpu_harness.h"
#include "tests/kernels/linear_fixture.h"
#include "tests/support/linear_case.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using namespace linear_test;

struct Reference {
  std::vector<double> y;
  std::vector<double> magnitude;  // sum of |w x|; rounding errors are bounded by a fraction of it
};

Reference linear_reference(const TestWeight& t, const std::vector<float>& x) {
  const auto n = static_cast<size_t>(t.w.n);
  const auto k = static_cast<size_t>(t.w.k);
  Reference r;
  for (size_t row = 0; row < x.size() / k; ++row) {
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      double magnitude = 0;
      for (size_t i = 0; i < k; ++i) {
        const double product =
            static_cast<double>(t.values[j * k + i]) * static_cast<double>(x[row * k + i]);
        sum += product;
        magnitude += std::abs(product);
      }
      r.y.push_back(sum);
      r.magnitude.push_back(magnitude);
    }
  }
  return r;
}

// Quantises and dequantises x to int8, with a scale for each `span` inputs: a plain version of ActFormat::kRounded.
std::vector<float> rounded_to_int8(const std::vector<float>& x, size_t k, size_t span) {
  std::vector<float> out(x.size());
  for (size_t row = 0; row < x.size(); row += k) {
    for (size_t first = 0; first < k; first += span) {
      const size_t end = std::min(first + span, k);
      float amax = 0;
      for (size_t i = first; i < end; ++i) {
        amax = std::max(amax, std::abs(x[row + i]));
      }
      for (size_t i = first; i < end; ++i) {
        out[row + i] =
            amax == 0 ? 0 : std::nearbyint(x[row + i] * (127.0F / amax)) * (amax / 127.0F);
      }
    }
  }
  return out;
}

// The e4m3 number next to v, by its definition: 4 bits of exponent with a bias of 7, 3 of fraction, up to 448.
double nearest_f8(double v) {
  const double magnitude = std::min(std::abs(v), 448.0);
  const int exponent = std::max(-6, magnitude > 0 ? std::ilogb(magnitude) : -6);
  const double step = std::ldexp(1.0, exponent - 3);
  return std::copysign(std::nearbyint(magnitude / step) * step, v);
}

// x as products with e4m3 weights round it.
std::vector<float> rounded_to_f8(const std::vector<float>& x, size_t k, const PackedWeight& w) {
  std::vector<float> out(x.size());
  const size_t span = w.inputs == F8Inputs::kGroup ? 128 : k;
  for (size_t row = 0; row < x.size(); row += k) {
    for (size_t first = 0; first < k; first += span) {
      float amax = 0;
      for (size_t i = first; i < std::min(first + span, k); ++i) {
        amax = std::max(amax, std::abs(x[row + i]));
      }
      const float scale = w.inputs == F8Inputs::kStatic ? w.input_scale : amax / 448.0F;
      const float factor = w.inputs == F8Inputs::kStatic ? 1.0F / w.input_scale : 448.0F / amax;
      for (size_t i = first; i < std::min(first + span, k); ++i) {
        out[row + i] =
            amax == 0
                ? 0
                : static_cast<float>(nearest_f8(static_cast<double>(x[row + i] * factor))) * scale;
      }
    }
  }
  return out;
}

void expect_near(const std::vector<float>& y, const Reference& r, double tolerance) {
  ASSERT_EQ(y.size(), r.y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    ASSERT_NEAR(y[i], r.y[i], tolerance * r.magnitude[i] + 1e-30) << "at " << i;
  }
}

struct LinearParam {
  CpuIsa isa;
  KindCase kind;
};

class LinearTest : public ::testing::TestWithParam<LinearParam> {
 protected:
  LinearTest() : scoped_isa_(GetParam().isa), rng_(17) {}
  void SetUp() override {
    if (!has_cpu_isa(GetParam().isa)) {
      GTEST_SKIP() << "this machine has no " << cpu_isa_name(GetParam().isa);
    }
  }
  [[nodiscard]] const KindCase& kind() const { return GetParam().kind; }
  std::vector<ActFormat> formats() const { return {ActFormat::kF32, ActFormat::kRounded}; }

  ScopedCpuIsa scoped_isa_;
  std::mt19937 rng_;
  InlineDevice one_{1};
};

TEST_P(LinearTest, FloatSumsMatchDoubleReference) {
  const int32_t unit = kind().unit();
  for (const int32_t k : {unit, 3 * unit, kind().quantised() ? 704 / unit * unit : 653}) {
    for (const int32_t n : {1, 16, 37, 64}) {
      const TestWeight t = make_weight(rng_, kind().shape(n, k));
      for (const int64_t num_toks : {1, 3, 4, 5, 13}) {
        const auto x = uniform_floats(rng_, num_toks * k, -1.0F, 1.0F);
        expect_near(run_linear(one_, t.w, x, ActFormat::kF32), linear_reference(t, x), 2e-6);
      }
    }
  }
}

TEST_P(LinearTest, Int8SumsMatchRoundedActivations) {
  if (!kind().quantised()) {
    return;
  }
  const int32_t unit = kind().unit();
  for (const int32_t k : {unit, 3 * unit, 1440 / unit * unit}) {
    for (const int32_t n : {1, 16, 37, 64}) {
      const TestWeight t = make_weight(rng_, kind().shape(n, k));
      for (const int64_t num_toks : {1, 3, 4, 8, 13}) {
        auto x = uniform_floats(rng_, num_toks * k, -1.0F, 1.0F);
        std::fill_n(x.begin(), std::min(k, std::max(32, kind().group)), 0.0F);  // its scale is zero
        const size_t span = std::max(32, kind().group);
        const auto rounded = rounded_to_int8(x, static_cast<size_t>(k), span);
        // The quantisation error of an activation is at most half of 1/127 of its group's largest magnitude.
        for (size_t i = 0; i < x.size(); ++i) {
          ASSERT_NEAR(x[i], rounded[i], 0.5 / 127 * 1.001);
        }
        // The bias term uses the sum over a whole group, before its large terms cancel. The margin is therefore wider.
        expect_near(run_linear(one_, t.w, x, ActFormat::kRounded),
                    linear_reference(t, rounded),
                    kind().has_bias ? 2e-5 : 2e-6);
      }
    }
  }
}

TEST_P(LinearTest, Bf16SumsMatchRoundedActivations) {
  if (kind().kind != PackedKind::kBF16) {
    return;
  }
  for (const int32_t k : {1, 2, 3, 64, 653, 1440}) {
    for (const int32_t n : {1, 16, 37, 64}) {
      const TestWeight t = make_weight(rng_, kind().shape(n, k));
      for (const int64_t num_toks : {1, 3, 4, 8, 13}) {
        const auto x = uniform_floats(rng_, num_toks * k, -1.0F, 1.0F);
        std::vector<float> rounded(x.size());
        std::transform(x.begin(), x.end(), rounded.begin(), [](float f) {
          return bf16_to_f32(f32_to_bf16(f));
        });
        expect_near(
            run_linear(one_, t.w, x, ActFormat::kRounded), linear_reference(t, rounded), 2e-6);
      }
    }
  }
}

TEST_P(LinearTest, InputsOfE4m3WeightsAreRounded) {
  if (kind().kind != PackedKind::kF32) {
    return;
  }
  for (const F8Inputs inputs : {F8Inputs::kRow, F8Inputs::kGroup, F8Inputs::kStatic}) {
    for (const int32_t k : {64, 200, 653}) {
      TestWeight t = make_weight(rng_, kind().shape(37, k));
      t.w.inputs = inputs;
      t.w.input_scale = 0.002F;
      for (const int64_t num_toks : {1, 5}) {
        auto x = uniform_floats(rng_, num_toks * k, -1.0F, 1.0F);
        std::fill_n(x.begin(), k > 128 ? 128 : 0, 0.0F);  // a group of zeros
        const auto rounded = rounded_to_f8(x, static_cast<size_t>(k), t.w);
        EXPECT_NE(rounded, x);
        expect_near(run_linear(one_, t.w, x, ActFormat::kF32), linear_reference(t, rounded), 2e-6);
      }
    }
  }
}

TEST_P(LinearTest, RowIsTheSameWhateverTheBatchAndThreads) {
  InlineDevice three(3);
  // Several blocks of k, an odd number of panels and a partial last panel.
  const size_t k = kind().unit() > 32 ? 1536 : 21 * 32;
  const TestWeight t = make_weight(rng_, kind().shape(16 * 4 + 3, static_cast<int32_t>(k)));
  const size_t n = 16 * 4 + 3;
  constexpr size_t kMaxToks = 40;
  const auto x = uniform_floats(rng_, kMaxToks * k, -2.0F, 2.0F);
  for (const ActFormat act : formats()) {
    std::vector<float> alone;
    for (size_t row = 0; row < kMaxToks; ++row) {
      const std::vector<float> xr(x.begin() + static_cast<long>(row * k),
                                  x.begin() + static_cast<long>((row + 1) * k));
      const auto y = run_linear(one_, t.w, xr, act);
      alone.insert(alone.end(), y.begin(), y.end());
    }
    for (size_t num_toks = 1; num_toks <= kMaxToks; ++num_toks) {
      const std::vector<float> xs(x.begin(), x.begin() + static_cast<long>(num_toks * k));
      for (InlineDevice* device : {&one_, &three}) {
        const auto y = run_linear(*device, t.w, xs, act);
        ASSERT_EQ(0, std::memcmp(y.data(), alone.data(), num_toks * n * sizeof(float)))
            << num_toks << " rows, " << (device == &one_ ? 1 : 3) << " threads, act "
            << static_cast<int>(act);
      }
    }
  }
}

// The largest weights with the largest activations: no intermediate may saturate.
TEST_P(LinearTest, ExtremesStayExact) {
  if (!kind().quantised()) {
    return;
  }
  const auto k = static_cast<size_t>(std::max(64, kind().unit()));
  const PackedWeight shape = kind().shape(32, static_cast<int32_t>(k));
  const int top =
      shape.kind == PackedKind::kMxfp4 ? 12 : (1 << stored_bits(shape.kind)) - 1 - shape.zero_point;
  std::vector<int> extremes{-shape.zero_point, top};
  if (shape.kind == PackedKind::kQ8) {
    extremes = {-128, -127, 127};
  } else if (shape.numbers != nullptr) {
    const auto [least, most] = std::minmax_element(shape.numbers, shape.numbers + 16);
    extremes = {*least, *most};
  }
  for (const int q_value : extremes) {
    const std::vector<int8_t> q(32 * k, static_cast<int8_t>(q_value));
    const std::vector<float> scale(32 * k / static_cast<size_t>(shape.group), 0.5F);
    const std::vector<float> bias(scale.size(), 0.25F);
    const std::vector<uint16_t> scale_half(scale.size(), 0x3400);  // 1 / 4
    const std::vector<uint16_t> bias_half(scale.size(), 0x3000);   // 1 / 8
    const std::vector<int8_t> two(scale.size(), 2);
    AlignedBytes storage(cpu::packed_bytes(shape));
    cpu::pack_groups(shape,
                     storage.data(),
                     0,
                     32,
                     {q.data(),
                      scale.data(),
                      bias.data(),
                      {scale_half.data(), two.data(), bias_half.data(), two.data()}});
    PackedWeight w = shape;
    w.data = storage.data();
    const float each =
        shape.scale_unit * 0.5F * static_cast<float>(q_value) + (shape.has_bias ? 0.25F : 0.0F);
    for (const float sign : {-1.0F, 1.0F}) {
      for (const int64_t num_toks : {1, 9}) {
        const std::vector<float> x(static_cast<size_t>(num_toks) * k, sign * 127.0F);
        for (const ActFormat act : formats()) {
          for (const float y : run_linear(one_, w, x, act)) {
            ASSERT_EQ(y, each * sign * 127.0F * static_cast<float>(k));
          }
        }
      }
    }
  }
}

// Infinities and NaN in a row must appear in that row's result and must not affect other rows.
TEST_P(LinearTest, InfinitiesAndNanSpoilTheirRowOnly) {
  const int32_t k = std::max(64, kind().unit());
  const TestWeight t = make_weight(rng_, kind().shape(20, k));
  for (const ActFormat act : formats()) {
    for (const size_t num_toks : {3, 9}) {
      auto x = uniform_floats(rng_, static_cast<int64_t>(num_toks) * k, -1.0F, 1.0F);
      const auto good = run_linear(one_, t.w, x, act);
      x[static_cast<size_t>(k) + 5] = std::numeric_limits<float>::quiet_NaN();
      x[static_cast<size_t>(2 * k) + 40] = -std::numeric_limits<float>::infinity();
      const auto y = run_linear(one_, t.w, x, act);
      for (size_t i = 0; i < y.size(); ++i) {
        if (i / 20 == 1 || i / 20 == 2) {
          ASSERT_FALSE(std::isfinite(y[i])) << "row " << i / 20;
        } else {
          ASSERT_EQ(y[i], good[i]);
        }
      }
    }
  }
}

std::vector<LinearParam> all_params() {
  std::vector<LinearParam> params;
  for (const CpuIsa isa : kCpuIsas) {
    for (const KindCase& kind : kKindCases) {
      if (isa != CpuIsa::kAvxVnni || kind.quantised()) {
        params.push_back({isa, kind});
      }
    }
  }
  return params;
}

INSTANTIATE_TEST_SUITE_P(All,
                         LinearTest,
                         ::testing::ValuesIn(all_params()),
                         [](const ::testing::TestParamInfo<LinearParam>& param) {
                           return std::string(cpu_isa_name(param.param.isa)) + "_" +
                                  param.param.kind.name;
                         });

// Segments of different kinds and group sizes over the same x. Tests bias, unwritten columns, strides and kAdd.
class LinearSegmentsTest : public ::testing::TestWithParam<CpuIsa> {
 protected:
  void SetUp() override {
    if (!has_cpu_isa(GetParam())) {
      GTEST_SKIP() << "this machine has no " << cpu_isa_name(GetParam());
    }
  }
  static constexpr int32_t kK = 256;
  static constexpr int kSegments = 4;
  static constexpr int64_t kYCols = 130;
  static constexpr int64_t kXStride = 260;
  static constexpr int64_t kYStride = 133;
};

TEST_P(LinearSegmentsTest, EachEqualsItselfAlone) {
  const ScopedCpuIsa isa(GetParam());
  std::mt19937 rng(5);
  InlineDevice d(2);
  const TestWeight weights[] = {make_weight(rng, kKindCases[4].shape(33, kK)),   // q4_1, group 32
                                make_weight(rng, kKindCases[10].shape(20, kK)),  // q6_k, group 16
                                make_weight(rng, kKindCases[2].shape(17, kK)),   // bf16
                                make_weight(rng, testing::kind_case("q8_wide").shape(40, kK))};
  const int64_t columns[] = {3, 36, 60, 80};
  const auto out_bias = uniform_floats(rng, 33, -1.0F, 1.0F);
  for (const ActFormat act : {ActFormat::kF32, ActFormat::kRounded}) {
    for (const int64_t num_toks : {1, 2, 11}) {
      const auto x = uniform_floats(rng, num_toks * kXStride, -1.0F, 1.0F);
      const auto before = uniform_floats(rng, num_toks * kYStride, -1.0F, 1.0F);
      std::vector<float> y = before;
      LinearArgs args;
      args.x = make_strided(x.data(), num_toks, static_cast<int64_t>(kK), kXStride);
      args.y = make_strided(y.data(), num_toks, kYCols, kYStride);
      for (int s = 0; s < kSegments; ++s) {
        args.segments[s] = {weights[s].w, s == 0 ? out_bias.data() : nullptr, columns[s]};
      }
      args.num_segments = kSegments;
      args.act = act;
      args.scratch = d.scratch.data();
      linear(*d.stream, args);

      std::vector<float> expected = before;
      std::vector<float> dense;
      for (int64_t t = 0; t < num_toks; ++t) {
        dense.insert(dense.end(), x.begin() + t * kXStride, x.begin() + t * kXStride + kK);
      }
      for (int s = 0; s < kSegments; ++s) {
        const auto alone = run_linear(d, weights[s].w, dense, act);
        const int64_t n = weights[s].w.n;
        for (int64_t t = 0; t < num_toks; ++t) {
          for (int64_t j = 0; j < n; ++j) {
            expected[static_cast<size_t>(t * kYStride + columns[s] + j)] =
                alone[static_cast<size_t>(t * n + j)] +
                (s == 0 ? out_bias[static_cast<size_t>(j)] : 0.0F);
          }
        }
      }
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i], 2e-5) << "at " << i;
        const auto column = static_cast<int64_t>(i) % kYStride;
        if (column < 3 || column >= 120) {
          ASSERT_EQ(y[i], before[i]);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Isas,
    LinearSegmentsTest,
    ::testing::Values(CpuIsa::kGeneric, CpuIsa::kAvx2, CpuIsa::kAvx512, CpuIsa::kAmx),
    [](const ::testing::TestParamInfo<CpuIsa>& param) { return cpu_isa_name(param.param); });

// The output [m, outputs] of a case.
std::vector<float> run_case(InlineDevice& d,
                            const testing::LinearCase& c,
                            const testing::LinearInputs& in) {
  PackedWeight weight = linear_test::shape_of(PackedKind::kBF16, c.n, c.k);
  linear_test::AlignedBytes packed(cpu::packed_bytes(weight));
  std::vector<uint16_t> plain(in.w.size());
  std::transform(in.w.begin(), in.w.end(), plain.begin(), &f32_to_bf16);
  cpu::pack_values(weight, packed.data(), 0, c.n, plain.data());
  weight.data = packed.data();
  const int64_t stride = c.outputs() + 2 * c.y_pad;
  std::vector<float> y(static_cast<size_t>(c.m * stride), -777.0F);
  for (int64_t t = 0; t < c.m; ++t) {
    std::copy_n(in.y.begin() + t * c.outputs(), c.outputs(), y.begin() + t * stride + c.y_pad);
  }
  std::vector<float> normed(in.x.size());
  std::vector<float> product(static_cast<size_t>(c.m) * static_cast<size_t>(c.n));
  LinearArgs args;
  args.x = make_view<const float>(in.x.data(), int64_t{c.m}, int64_t{c.k});
  if (c.norm) {
    args.norm_weight = make_view<const float>(in.norm.data(), int64_t{c.k});
    args.norm_eps = c.eps;
    args.normed = make_view(normed.data(), int64_t{c.m}, int64_t{c.k});
  }
  args.y = make_view(y.data(), int64_t{c.m}, stride);
  args.product = make_view(product.data(), int64_t{c.m}, int64_t{c.n});
  args.segments[0] = {weight, c.bias ? in.bias.data() : nullptr, c.y_pad};
  args.num_segments = 1;
  args.epilogue = c.epilogue;
  args.scratch = d.scratch.data();
  linear(*d.stream, args);
  std::vector<float> out;
  for (int64_t t = 0; t < c.m; ++t) {
    const auto row = y.begin() + t * stride;
    EXPECT_TRUE(std::all_of(row, row + c.y_pad, [](float v) { return v == -777.0F; }));
    out.insert(out.end(), row + c.y_pad, row + c.y_pad + c.outputs());
  }
  return out;
}

// A fused norm and epilogue must equal the three separate operations, with the pairs of gate and up on the borders of
// panels and between them, few and many rows, and one worker and many.
TEST(LinearEpilogueTest, EqualsTheOperationsOneByOne) {
  constexpr int64_t kK = 64;
  std::mt19937 rng(8);
  for (const auto& [num_workers, act] :
       {std::pair{2, ActFormat::kF32}, {2, ActFormat::kRounded}, {7, ActFormat::kRounded}}) {
    for (const int64_t num_toks : {1, 5, 40, 520}) {
      InlineDevice d(num_workers);
      d.scratch = AlignedBytes(cpu::linear_scratch_bytes(num_toks, kK));
      const auto x = uniform_floats(rng, num_toks * kK, -1.0F, 1.0F);
      const auto gain = uniform_floats(rng, kK, 0.5F, 1.5F);
      std::vector<float> normed(x.size());
      rms_norm(*d.stream,
               {make_view(x.data(), num_toks, kK),
                make_view(gain.data(), kK),
                make_view(normed.data(), num_toks, kK),
                1e-5F});
      for (const int32_t n : {48, 192, 256}) {
        for (const KindCase& kind : kKindCases) {
          if (kind.unit() > kK) {
            continue;
          }
          SCOPED_TRACE(std::string(kind.name) + ", " + std::to_string(n) + " outputs of " +
                       std::to_string(num_toks) + " rows by " + std::to_string(num_workers));
          const TestWeight weight = make_weight(rng, kind.shape(n, kK));
          const auto product = run_linear(d, weight.w, normed, act);
          for (const auto epilogue :
               {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSwiGlu}) {
            const int64_t width = epilogue == LinearEpilogue::kSwiGlu ? n / 2 : n;
            const auto before = uniform_floats(rng, num_toks * width, -1.0F, 1.0F);
            std::vector<float> expected = product;
            if (epilogue == LinearEpilogue::kAdd) {
              std::ranges::transform(before, product, expected.begin(), std::plus{});
            } else if (epilogue == LinearEpilogue::kSwiGlu) {
              expected.resize(before.size());
              silu_and_mul(*d.stream,
                           {make_view<const float>(product.data(), num_toks, n),
                            make_view(expected.data(), num_toks, width)});
            }
            std::vector<float> y = before;
            std::vector<float> room(x.size());
            std::vector<float> product_room(product.size());
            LinearArgs args;
            args.x = make_view<const float>(x.data(), num_toks, kK);
            args.norm_weight = make_view<const float>(gain.data(), kK);
            args.norm_eps = 1e-5F;
            args.normed = make_view(room.data(), num_toks, kK);
            args.y = make_view(y.data(), num_toks, width);
            args.product = make_view(product_room.data(), num_toks, int64_t{n});
            args.segments[0].w = weight.w;
            args.num_segments = 1;
            args.epilogue = epilogue;
            args.act = act;
            args.scratch = d.scratch.data();
            linear(*d.stream, args);
            ASSERT_EQ(y, expected) << "epilogue " << static_cast<int>(epilogue);
          }
        }
      }
    }
  }
}

// Gate and up as two matrices, of equal and of different widths, whose columns lie one behind the other.
TEST(LinearEpilogueSegmentsTest, GateAndUpMayBeTwoMatrices) {
  constexpr int64_t kK = 96;
  constexpr int64_t kToks = 33;
  std::mt19937 rng(9);
  InlineDevice d(2);
  d.scratch = AlignedBytes(cpu::linear_scratch_bytes(kToks, kK));
  const auto x = uniform_floats(rng, kToks * kK, -1.0F, 1.0F);
  for (const auto& [first, second] :
       {std::pair<int32_t, int32_t>{128, 128}, {64, 192}, {80, 112}}) {
    const int64_t n = first + second;
    const TestWeight parts[] = {make_weight(rng, kKindCases[2].shape(first, kK)),
                                make_weight(rng, kKindCases[2].shape(second, kK))};
    std::vector<float> product(static_cast<size_t>(kToks * n));
    std::vector<float> y(static_cast<size_t>(kToks * n / 2));
    LinearArgs args;
    args.x = make_view<const float>(x.data(), kToks, kK);
    args.y = make_view(product.data(), kToks, n);
    args.num_segments = 2;
    args.segments[0].w = parts[0].w;
    args.segments[1].w = parts[1].w;
    args.segments[1].y_col = first;
    args.act = ActFormat::kRounded;
    args.scratch = d.scratch.data();
    linear(*d.stream, args);
    std::vector<float> expected(y.size());
    silu_and_mul(*d.stream,
                 {make_view<const float>(product.data(), kToks, n),
                  make_view(expected.data(), kToks, n / 2)});
    std::vector<float> room(product.size());
    args.y = make_view(y.data(), kToks, n / 2);
    args.product = make_view(room.data(), kToks, n);
    args.epilogue = LinearEpilogue::kSwiGlu;
    linear(*d.stream, args);
    EXPECT_EQ(y, expected) << first;
  }
}

// The cases of the CUDA kernels (tests/cuda/linear_cuda_test.cpp) that the CPU supports too.
TEST(LinearCaseTest, AgreesWithDouble) {
  using testing::LinearCase;
  InlineDevice d(2);
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    for (const LinearEpilogue epilogue :
         {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSwiGlu}) {
      for (const int32_t m : {1, 4, 11, 40}) {
        for (const auto& [n, norm] :
             {std::pair{208, false}, {208, true}, {192, false}, {192, true}}) {
          const LinearCase c{.m = m,
                             .n = n,
                             .k = 320,
                             .epilogue = epilogue,
                             .norm = norm,
                             .bias = m > 1,
                             .y_pad = epilogue == LinearEpilogue::kStore ? 3 : 0};
          const testing::LinearInputs in = c.inputs(1);
          EXPECT_EQ(testing::first_mismatch(run_case(d, c, in), c.reference(in), {2e-5, 2e-5}), -1)
              << cpu_isa_name(isa) << " " << c.text();
        }
      }
    }
  }
}

TEST(LinearIsaTest, Avx2AndAvx512AgreeBitForBit) {
  if (detected_cpu_isa() < CpuIsa::kAvx512) {
    GTEST_SKIP() << "this machine has no AVX-512";
  }
  std::mt19937 rng(23);
  InlineDevice d(1);
  const ScopedCpuIsa without_tiles(
      CpuIsa::kAvx512Bf16);  // whose order of sums over bf16 is their own
  d.scratch = AlignedBytes(cpu::linear_scratch_bytes(130, 3 * 256));
  for (const KindCase& kind : kKindCases) {
    const TestWeight t = make_weight(rng, kind.shape(50, 3 * 256));
    for (const ActFormat act : {ActFormat::kF32, ActFormat::kRounded}) {
      for (const int64_t num_toks : {1, 2, 3, 4, 5, 7, 13, 130}) {
        const auto x = uniform_floats(rng, num_toks * 3 * 256, -1.0F, 1.0F);
        const auto best = run_linear(d, t.w, x, act);
        for (const CpuIsa lower : {CpuIsa::kAvx512, CpuIsa::kAvxVnni, CpuIsa::kAvx2}) {
          const ScopedCpuIsa scope(lower);
          EXPECT_EQ(best, run_linear(d, t.w, x, act)) << kind.name << " " << cpu_isa_name(lower);
        }
      }
    }
  }
}

// Every number of rows up to several tiles, several blocks of inputs and chunks of groups, and an odd number of panels.
TEST(LinearIsaTest, AmxMultipliesInt8AsAvx512Does) {
  if (cpu_isa() < CpuIsa::kAmx) {
    GTEST_SKIP() << "no AMX: the machine lacks it, its kernel refused the tiles, or "
                    "WARPROW_CPU_ISA names less";
  }
  std::mt19937 rng(29);
  InlineDevice d(1);
  for (const KindCase& kind : kKindCases) {
    if (!kind.quantised()) {
      continue;
    }
    const int32_t unit = kind.unit();
    for (const int32_t k : {unit, 7 * 32 / unit * unit, 2048 / unit * unit, 2048}) {
      if (k == 0) {
        continue;
      }
      for (const int32_t n : {1, 16, 37}) {
        const TestWeight t = make_weight(rng, kind.shape(n, k));
        for (int64_t num_toks = 1; num_toks <= 64; num_toks += k > 256 ? 9 : 1) {
          const auto x = uniform_floats(rng, num_toks * k, -1.0F, 1.0F);
          const auto tiles = run_linear(d, t.w, x, ActFormat::kRounded);
          const ScopedCpuIsa scope(CpuIsa::kAvx512);
          ASSERT_EQ(tiles, run_linear(d, t.w, x, ActFormat::kRounded))
              << kind.name << ", " << num_toks << " rows, n " << n << ", k " << k;
        }
      }
    }
  }
}

// A model of the tiles' sums: for each 32 inputs two chains of fused multiply-adds from 0.
TEST(LinearIsaTest, AmxAddsBf16ProductsInItsOwnOrder) {
  if (cpu_isa() < CpuIsa::kAmx) {
    GTEST_SKIP() << "no AMX: the machine lacks it, its kernel refused the tiles, or "
                    "WARPROW_CPU_ISA names less";
  }
  std::mt19937 rng(31);
  InlineDevice d(1);
  for (const int32_t k : {1, 2, 31, 32, 33, 70, 96, 653}) {
    for (const int32_t n : {1, 16, 37, 64}) {
      const TestWeight t = make_weight(rng, shape_of(PackedKind::kBF16, n, k));
      for (int64_t num_toks = 1; num_toks <= 50; num_toks += k == 70 || num_toks == 1 ? 1 : 7) {
        const auto x = uniform_floats(rng, num_toks * k, -1.0F, 1.0F);
        const auto y = run_linear(d, t.w, x, ActFormat::kRounded);
        for (int64_t row = 0; row < num_toks; ++row) {
          for (int32_t j = 0; j < n; ++j) {
            float sum = 0.0F;
            for (int32_t first = 0; first < k; first += 32) {
              float chains[2] = {};
              for (int32_t i = first; i < std::min(first + 32, k); ++i) {
                const float value = bf16_to_f32(f32_to_bf16(x[static_cast<size_t>(row * k + i)]));
                const float weight = t.values[static_cast<size_t>(j) * static_cast<size_t>(k) +
                                              static_cast<size_t>(i)];
                chains[i % 2] = std::fma(weight, value, chains[i % 2]);
              }
              sum += chains[0] + chains[1];
            }
            ASSERT_EQ(y[static_cast<size_t>(row * n + j)], sum)
                << num_toks << " rows, n " << n << ", k " << k << ", row " << row << ", output "
                << j;
          }
        }
      }
    }
  }
}

// More rows than a block has, of which each worker has its own, with biases and strides.
TEST(LinearIsaTest, RowsOfManyBlocksAreRowsAlone) {
  constexpr int32_t kN = 50;
  constexpr int32_t kK = 70;
  constexpr int64_t kMostRows = 1100;
  constexpr int64_t kYStride = 67;
  std::mt19937 rng(37);
  const TestWeight t = make_weight(rng, shape_of(PackedKind::kBF16, kN, kK));
  const auto bias = uniform_floats(rng, kN, -1.0F, 1.0F);
  const auto x = uniform_floats(rng, kMostRows * kK, -1.0F, 1.0F);
  linear_test::AlignedBytes scratch(cpu::linear_scratch_bytes(kMostRows, kK));
  for (const CpuIsa isa : testing::runnable_isas()) {
    const ScopedCpuIsa scope(isa);
    const auto run = [&](InlineDevice& d, int64_t first, int64_t rows, float* y) {
      LinearArgs args;
      args.x = make_view(x.data() + first * kK, rows, int64_t{kK});
      args.y = make_strided(y, rows, int64_t{kN}, kYStride);
      args.segments[0] = {t.w, bias.data(), 0};
      args.num_segments = 1;
      args.act = ActFormat::kRounded;
      args.scratch = scratch.data();
      linear(*d.stream, args);
    };
    InlineDevice one(1);
    std::vector<float> alone(static_cast<size_t>(kMostRows * kYStride));
    for (int64_t row = 0; row < kMostRows; ++row) {
      run(one, row, 1, alone.data() + row * kYStride);
    }
    for (const int32_t workers : {1, 2, 3}) {
      InlineDevice d(workers);
      for (const int64_t rows : {int64_t{129}, int64_t{391}, kMostRows}) {
        std::vector<float> together(alone.size());
        run(d, 0, rows, together.data());
        const auto end = static_cast<std::ptrdiff_t>(rows * kYStride);
        ASSERT_TRUE(std::equal(together.begin(), together.begin() + end, alone.begin()))
            << cpu_isa_name(isa) << ", " << workers << " workers, " << rows << " rows";
        ASSERT_TRUE(std::all_of(together.begin() + end, together.end(), [](float v) {
          return v == 0.0F;
        })) << "rows behind the last";
      }
    }
  }
}

TEST(LinearArgsTest, NoRowsIsNothing) {
  std::mt19937 rng(1);
  InlineDevice d(1);
  const TestWeight t = make_weight(rng, kKindCases[0].shape(5, 7));
  EXPECT_TRUE(run_linear(d, t.w, {}, ActFormat::kF32).empty());
}

TEST(LinearArgsTest, MisuseIsCaught) {
  std::mt19937 rng(1);
  InlineDevice d(1);
  const TestWeight t = make_weight(rng, kKindCases[5].shape(16, 32));
  const std::vector<float> x(32);
  std::vector<float> y(16);
  LinearArgs args;
  args.x = make_view(x.data(), 1, 32);
  args.y = make_view(y.data(), 1, 16);
  args.segments[0].w = t.w;
  args.num_segments = 1;
  args.act = ActFormat::kRounded;
  const ScopedCheckThrows throws;
  EXPECT_THROW(linear(*d.stream, args), CheckFailure) << "no scratch";
  args.scratch = d.scratch.data();
  args.segments[0].y_col = 1;
  EXPECT_THROW(linear(*d.stream, args), CheckFailure) << "columns outside y";
  args.segments[0].y_col = 0;
  args.x.shape[1] = 31;
  EXPECT_THROW(linear(*d.stream, args), CheckFailure) << "k differs";
  args.x.shape[1] = 32;
  linear(*d.stream, args);
}

}  // namespace
}  // namespace warprow
