// SPDX-License-Identifier: Apache-2.0
// Products with quantised weights: against sums in double of the same numbers, and the bits of a row among any number of
// rows.
#include "base/dtype.h"
#include "base/float8.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow::testing {
namespace {

using enum LinearEpilogue;
using enum ScaleForm;
using cuda::sm90_gemm_plan;
using cuda::sm90_quant_parts;
using cuda::sm90_quant_plan;
using cuda::Sm90GemmArgs;

constexpr float kQuantNormEps = 1e-6F;

struct QuantProduct {
  PackedKind kind = PackedKind::kF8;
  int32_t n = 0;
  int32_t k = 0;
  LinearEpilogue epilogue = kStore;
  bool y_f32 = false;
  bool bias = false;
  int32_t group = 128;
  bool zeros = false;
  ScaleForm scales = kF16;
  bool biases = false;  // of groups
  [[nodiscard]] int32_t outputs() const { return epilogue == kSwiGlu ? n / 2 : n; }
  [[nodiscard]] LinearShape shape() const {
    return {n, k, y_f32 ? DType::kF32 : DType::kBF16, epilogue, bias, true, kind};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("kind {} {} x {} group {} epilogue {} scales {}",
                       static_cast<int>(kind),
                       n,
                       k,
                       group,
                       static_cast<int>(epilogue),
                       scales == kF16 ? "two bf16"
                       : biases       ? "bf16 with a bias"
                                      : "bf16");
  }
};

class QuantLinearTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "products with quantised weights need a GPU of compute capability 9.0";
    }
  }

  std::byte* scratch_ = nullptr;  // of check_rows

  struct Loaded {
    QuantProduct product;
    PackedWeight weight;
    std::vector<float> values;  // [n, k]
    std::vector<float> bias;
    const float* bias_data = nullptr;
    ActView product_room;
    ActView normed;
  };

  static float value_of(
      const QuantProduct& p, uint8_t number, float scale, uint8_t zero, float group_bias) {
    const float value = p.kind == PackedKind::kF8
                            ? f8_e4m3_to_f32(number)
                            : static_cast<float>(number) - static_cast<float>(zero);
    return bf16_to_f32(p.biases ? quant_weight(value, scale, group_bias)
                                : quant_weight(value, scale));
  }

  Loaded load(const QuantProduct& p, uint32_t seed, int32_t max_rows) {
    Loaded out;
    out.product = p;
    PackedWeight& w = out.weight;
    w.kind = p.kind;
    w.n = p.n;
    w.k = p.k;
    w.group = p.group;
    w.has_zero_points = p.zeros;
    w.scales = p.scales;
    w.has_bias = p.biases;
    w.zero_point = p.biases                    ? 0
                   : p.kind == PackedKind::kQ4 ? 8
                   : p.kind == PackedKind::kQ6 ? 32
                   : p.kind == PackedKind::kQ8 ? 128
                                               : 0;
    std::mt19937 rng(seed);
    const auto n = static_cast<size_t>(p.n);
    const auto k = static_cast<size_t>(p.k);
    const size_t groups = (k + static_cast<size_t>(p.group) - 1) / static_cast<size_t>(p.group);
    std::vector<uint8_t> numbers(n * k);
    for (uint8_t& v : numbers) {
      v = static_cast<uint8_t>(rng() % (p.kind == PackedKind::kQ4   ? 16
                                        : p.kind == PackedKind::kQ6 ? 64
                                                                    : 256));
      if (p.kind == PackedKind::kF8 && (v & 0x7fU) == 0x7fU) {
        v = 0x3a;  // not a number
      }
    }
    std::vector<float> scales(n * groups);
    std::vector<uint8_t> zeros(n * groups, static_cast<uint8_t>(w.zero_point));
    std::vector<float> group_biases(n * groups, -0.0F);
    const float typical = p.kind == PackedKind::kQ4 ? 0.2F : 0.01F;
    for (size_t i = 0; i < scales.size(); ++i) {
      scales[i] = typical * (0.5F + static_cast<float>(rng() % 1000) / 1000.0F) /
                  std::sqrt(static_cast<float>(k));
      if (p.scales == kBF16) {
        scales[i] = bf16_to_f32(f32_to_bf16(scales[i]));
      }
      if (p.biases) {
        group_biases[i] = bf16_to_f32(f32_to_bf16(
            -scales[i] * static_cast<float>(rng() % (p.kind == PackedKind::kQ4 ? 16 : 64))));
      }
      if (p.zeros) {
        zeros[i] = static_cast<uint8_t>(rng() % (p.kind == PackedKind::kQ4 ? 16 : 256));
      }
    }
    out.values.resize(n * k);
    for (size_t i = 0; i < n * k; ++i) {
      const size_t group = i / k * groups + i % k / static_cast<size_t>(p.group);
      out.values[i] = value_of(p, numbers[i], scales[group], zeros[group], group_biases[group]);
    }
    std::vector<std::byte> tiles(quant_tiles_bytes(w));
    const size_t row_bytes = quant_row_bytes(w);
    for (size_t row = 0; row < n; row += 16) {
      const auto count = static_cast<int64_t>(std::min<size_t>(16, n - row));
      pack_quant_tiles(w,
                       count,
                       {numbers.data() + row * k,
                        scales.data() + row * groups,
                        zeros.data() + row * groups,
                        group_biases.data() + row * groups},
                       {tiles.data() + row / 16 * row_bytes, row_bytes});
    }
    w.data = upload(tiles);
    if (p.bias) {
      out.bias = normals(n, seed + 1);
      out.bias_data = upload(out.bias);
    }
    out.product_room =
        p.epilogue == kSwiGlu ? poisoned_act(DType::kBF16, max_rows, p.n) : ActView();
    out.normed = poisoned_act(DType::kBF16, max_rows, p.k);
    return out;
  }

  void run(const Loaded& l,
           const ConstActView& x,
           const ActView& y,
           const float* norm_weight = nullptr,
           const HalfNorm* half = nullptr,
           const HalfNorm* next = nullptr) {
    LinearArgs args;
    args.x = x;
    if (norm_weight != nullptr) {
      args.norm_weight = make_view<const float>(norm_weight, l.product.k);
      args.norm_eps = kQuantNormEps;
      args.normed = l.normed;
    }
    args.half_norm = half;
    args.next_norm = next;
    args.y = y;
    args.product = l.product_room;
    args.segments[0].w = l.weight;
    args.segments[0].bias = l.bias_data;
    args.num_segments = 1;
    args.epilogue = l.product.epilogue;
    args.batch_invariant = true;
    args.scratch = scratch_;
    linear(stream(), args);
  }

  // x bf16 [m, k]; sums in double.
  static std::vector<double> reference(const Loaded& l,
                                       const std::vector<float>& x,
                                       int32_t m,
                                       const std::vector<float>& old) {
    const QuantProduct& p = l.product;
    std::vector<double> sums(static_cast<size_t>(m) * static_cast<size_t>(p.n));
    for (int32_t t = 0; t < m; ++t) {
      for (int32_t j = 0; j < p.n; ++j) {
        double sum = p.bias ? static_cast<double>(l.bias[static_cast<size_t>(j)]) : 0.0;
        for (int32_t i = 0; i < p.k; ++i) {
          sum += static_cast<double>(l.values[static_cast<size_t>(j * p.k + i)]) *
                 static_cast<double>(x[static_cast<size_t>(t * p.k + i)]);
        }
        sums[static_cast<size_t>(t * p.n + j)] = sum;
      }
    }
    if (p.epilogue == kStore) {
      return sums;
    }
    std::vector<double> out(static_cast<size_t>(m * p.outputs()));
    for (int32_t t = 0; t < m; ++t) {
      for (int32_t j = 0; j < p.outputs(); ++j) {
        const auto at = static_cast<size_t>(t * p.outputs() + j);
        const double sum = sums[static_cast<size_t>(t * p.n + j)];
        out[at] = p.epilogue == kAdd ? sum + static_cast<double>(old[at])
                                     : sum / (1.0 + std::exp(-sum)) *
                                           sums[static_cast<size_t>(t * p.n + p.outputs() + j)];
      }
    }
    return out;
  }

  // The same weights in bf16 have the same bits where the order of sums is the same.
  void check_bf16(const QuantProduct& p) {
    for (const int32_t m : {1, 8, 9, 32, 33, 200}) {
      arena().reset();
      const Loaded l = load(p, 3, m);
      Sm90GemmArgs args;
      args.w = upload(bf16s(l.values));
      args.x = upload_act(normals(static_cast<size_t>(m * p.k), 5), m, p.k).data;
      args.x_stride = p.k;
      args.bias = l.bias_data;
      args.y_stride = p.outputs();
      args.y_f32 = p.y_f32;
      args.epilogue = p.epilogue;
      args.m = m;
      args.n = p.n;
      args.k = p.k;
      const auto run_into = [&](bool quantised) {
        ActView y = poisoned_act(p.y_f32 ? DType::kF32 : DType::kBF16, m, p.outputs());
        if (p.epilogue == kAdd) {
          y.data = reinterpret_cast<std::byte*>(
              upload(normals(static_cast<size_t>(m * p.outputs()), 7)));
        }
        Sm90GemmArgs own = args;
        own.y = y.data;
        const int32_t sms = gpu().facts().num_sms;
        const int32_t parts = sm90_quant_parts(p.kind, p.n, p.k);
        if (quantised) {
          own.w = l.weight.data;
          sm90_quant_gemm(stream(), own, l.weight, sm90_quant_plan(l.weight, m, sms));
        } else {
          sm90_bf16_gemm_small_m(stream(), own, sm90_gemm_plan(m, p.n, p.k, sms, parts));
        }
        return bytes(y);
      };
      EXPECT_TRUE(run_into(true) == run_into(false)) << p.text() << ", " << m << " rows";
    }
  }

  static std::vector<uint16_t> bf16s(const std::vector<float>& values) {
    std::vector<uint16_t> out(values.size());
    std::transform(values.begin(), values.end(), out.begin(), f32_to_bf16);
    return out;
  }

  void check(const QuantProduct& p) {
    for (const int32_t m : {1, 8, 9, 33, 70, 129}) {
      arena().reset();
      const Loaded l = load(p, 3, m);
      const std::vector<float> x = rounded(normals(static_cast<size_t>(m * p.k), 5));
      const std::vector<float> old = normals(static_cast<size_t>(m * p.outputs()), 7);
      ActView y = poisoned_act(p.y_f32 ? DType::kF32 : DType::kBF16, m, p.outputs());
      if (p.epilogue == kAdd) {
        y.data = reinterpret_cast<std::byte*>(upload(old));
      }
      run(l, upload_act(x, m, p.k), y);
      const std::vector<double> want = reference(l, x, m, old);
      const std::vector<float> got = download_act(y);
      const double tolerance = p.y_f32 ? 2e-5 : 1e-2;
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(static_cast<double>(got[i]), want[i], tolerance * (1.0 + std::abs(want[i])))
            << p.text() << ", " << m << " rows, element " << i;
      }
    }
  }

  std::vector<std::byte> bytes(const ActView& act) {
    return download(static_cast<const std::byte*>(act.data),
                    static_cast<size_t>(act.shape[0] * act.stride) * dtype_bytes(act.dtype));
  }

  // A sum that does the first half of a norm, and the product behind it: bits of rows among any number of rows.
  void check_rows(const QuantProduct& sum, const QuantProduct& behind) {
    constexpr int32_t kAll = 2100;  // above what dequantised rows take
    arena().reset();
    scratch_ = arena().alloc_bytes(linear_scratch_bytes(gpu().facts(), kAll, sum.k));
    ASSERT_TRUE(halved_norm_rows(gpu().facts(), sum.shape(), behind.shape()).has(1));
    const Loaded first = load(sum, 11, kAll);
    const Loaded second = load(behind, 13, kAll);
    const std::vector<float> x = normals(static_cast<size_t>(kAll * sum.k), 15);
    const std::vector<float> old = normals(static_cast<size_t>(kAll * sum.n), 17);
    const ActView inputs = upload_act(x, kAll, sum.k);
    const ActView residual = poisoned_act(DType::kF32, kAll, sum.n);
    const ActView y = poisoned_act(DType::kBF16, kAll, behind.outputs());
    HalfNorm half;
    half.weight = make_view<const float>(upload(normals(static_cast<size_t>(sum.n), 19)), sum.n);
    half.rows = poisoned_act(DType::kBF16, kAll, sum.n);
    half.squares = poisoned<float>(static_cast<size_t>(half_norm_squares(kAll, sum.n)));
    const auto run_rows = [&](int32_t from, int32_t m) {
      const ActView at = residual.rows(0, m);
      stream().copy_to_device(at.data,
                              old.data() + static_cast<ptrdiff_t>(from) * sum.n,
                              static_cast<size_t>(m * sum.n) * sizeof(float));
      run(first, inputs.rows(from, m), at, nullptr, nullptr, &half);
      run(second, at, y.rows(0, m), half.weight.data, &half);
      std::vector<std::byte> out = bytes(at);
      const std::vector<std::byte> rest = bytes(y.rows(0, m));
      return std::pair{out, rest};
    };
    const auto all = run_rows(0, kAll);
    for (const int32_t m : {1, 2, 7, 8, 9, 31, 32, 33, 64, 65, 128, 129, 256, 257, 500, 2048}) {
      const int32_t from = m * 7 % 64;
      const auto some = run_rows(from, m);
      const auto same = [&](const std::vector<std::byte>& whole,
                            const std::vector<std::byte>& part) {
        const size_t row = whole.size() / kAll;
        return std::equal(
            part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(row) * from);
      };
      EXPECT_TRUE(same(all.first, some.first)) << sum.text() << ": " << m << " rows";
      EXPECT_TRUE(same(all.second, some.second)) << behind.text() << ": " << m << " rows";
    }
  }
};

TEST_F(QuantLinearTest, EveryKindMatchesSumsInDouble) {
  for (const PackedKind kind : {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ8}) {
    check({kind, 96, 256, kStore, true});
    check({kind, 104, 200, kStore, false, true});
    check({kind, 256, 1096, kAdd, true});
    check({kind, 2 * 208, 320, kSwiGlu, false, true});
    check({kind, 64, 2048, kAdd, true, true});  // parts of k
  }
}

TEST_F(QuantLinearTest, EqualsBf16WeightsBitForBit) {
  for (const PackedKind kind : {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ8}) {
    check_bf16({kind, 96, 256, kStore, true, true});
    check_bf16({kind, 512, 4096, kAdd, true});
    check_bf16({kind, 2 * 1024, 1024, kSwiGlu});
  }
  check_bf16({PackedKind::kQ4, 1024, 2048, kStore, true, false, 32, true});
  for (const PackedKind kind : {PackedKind::kQ4, PackedKind::kQ8}) {
    for (const int32_t group : {32, 64, 128}) {
      for (const bool zeros : {false, true}) {
        check_bf16({kind, 512, 2048, kAdd, true, false, group, zeros, kBF16});
      }
    }
    check_bf16({kind, 2 * 1024, 1024, kSwiGlu, false, true, 128, false, kBF16});
  }
  check_bf16({PackedKind::kF8, 512, 2048, kAdd, true, false, 128, false, kBF16});
  // More tiles of rows than the GPU has SMs, of which the last one's rows are not all there.
  check_bf16({PackedKind::kQ4, 2 * 12304, 256, kSwiGlu, false, true});
  for (const bool biases : {false, true}) {
    check_bf16({PackedKind::kQ4, 1024, 2048, kStore, true, false, 32, false, kBF16, biases});
    check_bf16({PackedKind::kQ8, 2 * 1024, 1024, kSwiGlu, false, true, 32, false, kBF16, biases});
    check_bf16({PackedKind::kQ8, 512, 4096, kAdd, true, false, 16, false, kBF16, biases});
    check_bf16({PackedKind::kQ6, 512, 4096, kAdd, true, false, 16, false, kBF16, biases});
    check_bf16({PackedKind::kQ6, 2 * 1024, 1024, kSwiGlu, false, true, 32, false, kBF16, biases});
  }
}

TEST_F(QuantLinearTest, Bf16ScalesAndBiases) {
  for (const bool biases : {false, true}) {
    check({PackedKind::kQ4, 80, 416, kStore, true, false, 32, false, kBF16, biases});
    check({PackedKind::kQ4, 2 * 96, 1024, kSwiGlu, false, true, 32, false, kBF16, biases});
    check({PackedKind::kQ8, 80, 416, kAdd, true, false, 32, false, kBF16, biases});
    check({PackedKind::kQ6, 80, 416, kStore, true, false, 32, false, kBF16, biases});
    check({PackedKind::kQ6, 2 * 96, 1024, kSwiGlu, false, false, 16, false, kBF16, biases});
    check({PackedKind::kQ8, 2 * 96, 1024, kSwiGlu, false, false, 16, false, kBF16, biases});
  }
}

TEST_F(QuantLinearTest, GroupsAndZeroPoints) {
  for (const PackedKind kind : {PackedKind::kQ4, PackedKind::kQ8}) {
    for (const int32_t group : {32, 64, 128}) {
      for (const ScaleForm scales : {kF16, kBF16}) {
        check({kind, 80, 392, kStore, true, false, group, true, scales});
        check({kind, 2 * 96, 1024, kSwiGlu, false, false, group, false, scales});
      }
    }
  }
}

TEST_F(QuantLinearTest, ARowHasTheSameBitsAmongAnyNumberOfRows) {
  for (const PackedKind kind : {PackedKind::kF8, PackedKind::kQ4, PackedKind::kQ8}) {
    check_rows({kind, 1024, 2048, kAdd, true, true}, {kind, 2 * 1024, 1024, kSwiGlu});
    check_rows({kind, 4096, 4096, kAdd, true}, {kind, 6144, 4096, kStore, false, true});
    check_rows({kind, 320, 520, kAdd, true}, {kind, 104, 320, kStore});
    check_rows({kind, 4160, 2048, kAdd, true}, {kind, 2 * 2128, 4160, kSwiGlu});
  }
  check_rows({PackedKind::kQ4, 1024, 2048, kAdd, true, true, 32, true},
             {PackedKind::kQ4, 2 * 1024, 1024, kSwiGlu, false, false, 64, true});
  check_rows({PackedKind::kQ8, 1024, 2048, kAdd, true, true, 32, true, kBF16},
             {PackedKind::kQ4, 2 * 1024, 1024, kSwiGlu, false, false, 128, false, kBF16});
  check_rows({PackedKind::kF8, 1024, 2048, kAdd, true, true, 128, false, kBF16},
             {PackedKind::kF8, 2 * 1024, 1024, kSwiGlu, false, false, 128, false, kBF16});
  check_rows({PackedKind::kQ6, 4096, 4096, kAdd, true, false, 16, false, kBF16, true},
             {PackedKind::kQ4, 6144, 4096, kStore, false, true, 32, false, kBF16, true});
  check_rows({PackedKind::kQ4, 1024, 2048, kAdd, true, true, 32, false, kBF16, false},
             {PackedKind::kQ8, 2 * 1024, 1024, kSwiGlu, false, false, 16, false, kBF16, false});
}

}  // namespace
}  // namespace warprow::testing
