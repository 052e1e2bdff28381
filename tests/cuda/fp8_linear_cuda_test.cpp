// SPDX-License-Identifier: Apache-2.0
// Products of e4m3 weights and inputs: the rounding of inputs bit for bit, sums in double of the same numbers, and the bits of
// a row among any number of rows.
#include "base/dtype.h"
#include "base/float8.h"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/round_inputs.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

namespace warprow::testing {
namespace {

using enum LinearEpilogue;
using cuda::F8Rows;
using cuda::RoundInputsArgs;

constexpr float kF8NormEps = 1e-6F;

struct F8Product {
  int32_t n = 0;
  int32_t k = 0;
  LinearEpilogue epilogue = kStore;
  bool y_f32 = false;
  bool bias = false;
  F8Inputs inputs = F8Inputs::kRow;
  int32_t alike = 1;  // adjacent rows of w with one scale, of inputs in groups
  [[nodiscard]] int32_t outputs() const { return epilogue == kSwiGlu ? n / 2 : n; }
  [[nodiscard]] LinearShape shape() const {
    return {n, k, y_f32 ? DType::kF32 : DType::kBF16, epilogue, bias, true, PackedKind::kF8F8};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} x {} epilogue {} inputs {}",
                       n,
                       k,
                       static_cast<int>(epilogue),
                       static_cast<int>(inputs));
  }
};

// Rows of numbers, and what a number is: for each 128 inputs, times a token scale.
struct Rounded {
  std::vector<uint8_t> numbers;
  std::vector<float> group_scales;  // [m, tiles]
  std::vector<float> token_scales;
};

// As round_inputs says, without a norm.
Rounded round_on_host(
    const std::vector<float>& x, int32_t m, int32_t k, F8Inputs inputs, float input_scale) {
  Rounded out;
  const int32_t tiles = fp8_tiles_of(k);
  out.numbers.resize(x.size());
  out.group_scales.assign(static_cast<size_t>(m * tiles), 1.0F);
  out.token_scales.assign(static_cast<size_t>(m), inputs == F8Inputs::kStatic ? input_scale : 1.0F);
  const int32_t span = inputs == F8Inputs::kGroup ? 128 : k;
  for (int32_t t = 0; t < m; ++t) {
    for (int32_t first = 0; first < k; first += span) {
      const auto begin = x.begin() + static_cast<ptrdiff_t>(t) * k + first;
      const auto end = begin + std::min(span, k - first);
      float most = 0x1p-100F;
      std::for_each(begin, end, [&](float v) { most = std::max(most, std::fabs(v)); });
      const float factor = inputs == F8Inputs::kStatic ? 1.0F / input_scale : 448.0F / most;
      std::transform(begin, end, out.numbers.begin() + (begin - x.begin()), [&](float v) {
        return f32_to_f8_e4m3(v * factor);
      });
      if (inputs == F8Inputs::kGroup) {
        out.group_scales[static_cast<size_t>(t * tiles + first / 128)] = most / 448.0F;
      } else if (inputs == F8Inputs::kRow) {
        out.token_scales[static_cast<size_t>(t)] = most / 448.0F;
      }
    }
  }
  return out;
}

class Fp8LinearTest : public CudaTest {
 protected:
  void SetUp() override {
    CudaTest::SetUp();
    if (!IsSkipped() && gpu().facts().compute_capability != 90) {
      GTEST_SKIP() << "products of e4m3 numbers need a GPU of compute capability 9.0";
    }
  }

  std::byte* scratch_ = nullptr;

  struct Loaded {
    F8Product product;
    PackedWeight weight;
    std::vector<uint8_t> numbers;  // [n, k]
    std::vector<float> scales;     // [n, tiles]
    std::vector<float> bias;
    const float* bias_data = nullptr;
    ActView product_room;
    ActView normed;
  };

  Loaded load(const F8Product& p, uint32_t seed, int32_t max_rows) {
    Loaded out;
    out.product = p;
    PackedWeight& w = out.weight;
    w.kind = PackedKind::kF8F8;
    w.n = p.n;
    w.k = p.k;
    w.group = 128;
    w.inputs = p.inputs;
    w.input_scale = 0.011F;
    std::mt19937 rng(seed);
    const auto n = static_cast<size_t>(p.n);
    const auto k = static_cast<size_t>(p.k);
    const auto tiles = static_cast<size_t>(fp8_tiles_of(p.k));
    out.numbers.resize(n * k);
    for (uint8_t& v : out.numbers) {
      v = static_cast<uint8_t>(rng() % 256);
      if ((v & 0x7fU) == 0x7fU) {
        v = 0x3a;  // not a number
      }
    }
    out.scales.resize(n * tiles);
    for (size_t i = 0; i < out.scales.size(); ++i) {
      if (p.inputs != F8Inputs::kGroup && i % tiles > 0) {
        out.scales[i] = out.scales[i - 1];
      } else if (i / tiles % static_cast<size_t>(p.alike) > 0) {
        out.scales[i] = out.scales[i - tiles];
      } else {
        out.scales[i] = 0.01F * (0.5F + static_cast<float>(rng() % 1000) / 1000.0F) /
                        std::sqrt(static_cast<float>(k));
      }
    }
    std::vector<std::byte> units(quant_tiles_bytes(w));
    const auto unit_bytes = static_cast<size_t>(fp8_unit_bytes(p.k, p.inputs == F8Inputs::kGroup));
    for (size_t row = 0; row < n; row += 16) {
      pack_fp8_unit(w,
                    static_cast<int64_t>(std::min<size_t>(16, n - row)),
                    out.numbers.data() + row * k,
                    out.scales.data() + row * tiles,
                    {units.data() + row / 16 * unit_bytes, unit_bytes});
    }
    w.data = upload(units);
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
      args.norm_eps = kF8NormEps;
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

  // x: bf16 values [m, k]; sums in double of the rounded numbers.
  static std::vector<double> reference(const Loaded& l,
                                       const std::vector<float>& x,
                                       int32_t m,
                                       const std::vector<float>& old) {
    const F8Product& p = l.product;
    const Rounded rounded = round_on_host(x, m, p.k, p.inputs, l.weight.input_scale);
    const int32_t tiles = fp8_tiles_of(p.k);
    std::vector<float> values(256);
    for (int v = 0; v < 256; ++v) {
      values[static_cast<size_t>(v)] = f8_e4m3_to_f32(static_cast<uint8_t>(v));
    }
    std::vector<double> sums(static_cast<size_t>(m) * static_cast<size_t>(p.n));
    for (int32_t t = 0; t < m; ++t) {
      for (int32_t j = 0; j < p.n; ++j) {
        double sum = 0;
        for (int32_t tile = 0; tile < tiles; ++tile) {
          double part = 0;
          for (int32_t i = tile * 128; i < std::min(p.k, tile * 128 + 128); ++i) {
            part += static_cast<double>(values[l.numbers[static_cast<size_t>(j * p.k + i)]]) *
                    static_cast<double>(values[rounded.numbers[static_cast<size_t>(t * p.k + i)]]);
          }
          sum += part * static_cast<double>(l.scales[static_cast<size_t>(j * tiles + tile)]) *
                 static_cast<double>(rounded.group_scales[static_cast<size_t>(t * tiles + tile)]);
        }
        sum *= static_cast<double>(rounded.token_scales[static_cast<size_t>(t)]);
        sums[static_cast<size_t>(t * p.n + j)] =
            sum + (p.bias ? static_cast<double>(l.bias[static_cast<size_t>(j)]) : 0.0);
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

  void check(const F8Product& p) {
    for (const int32_t m : {1, 2, 8, 9, 17, 33, 70, 129, 300}) {
      arena().reset();
      scratch_ = arena().alloc_bytes(linear_scratch_bytes(gpu().facts(), m, p.k));
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
      // Products of one chain of the tensor cores have about 14 bits of its largest.
      const double tolerance = p.y_f32 ? 2e-3 : 1e-2;
      double worst = 0;
      size_t where = 0;
      for (size_t i = 0; i < want.size(); ++i) {
        const double error =
            std::abs(static_cast<double>(got[i]) - want[i]) / (1.0 + std::abs(want[i]));
        if (!(error <= worst)) {
          worst = error;
          where = i;
        }
      }
      EXPECT_LE(worst, tolerance) << p.text() << ", " << m << " rows, element " << where << ": "
                                  << got[where] << ", not " << want[where];
    }
  }

  std::vector<std::byte> bytes(const ActView& act) {
    return download(static_cast<const std::byte*>(act.data),
                    static_cast<size_t>(act.shape[0] * act.stride) * dtype_bytes(act.dtype));
  }

  // A sum that does the first half of a norm, and the product behind it: bits of rows among any number of rows.
  void check_rows(const F8Product& sum, const F8Product& behind) {
    constexpr int32_t kAll = 4200;
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
    // begun: whether the sum begins the norm, or the product behind it does all.
    const auto run_rows = [&](int32_t from, int32_t m, bool begun) {
      half.begun = begun;
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
    const auto all = run_rows(0, kAll, true);
    for (const int32_t m :
         {1, 2, 7, 8, 9, 16, 17, 31, 32, 33, 64, 65, 128, 129, 256, 257, 500, 1024, 2048}) {
      const int32_t from = m * 7 % 64;
      // The first byte that differs, or -1.
      const auto differs = [&](const std::vector<std::byte>& whole,
                               const std::vector<std::byte>& part) {
        const size_t row = whole.size() / kAll;
        const auto at = std::mismatch(
            part.begin(), part.end(), whole.begin() + static_cast<ptrdiff_t>(row) * from);
        return at.first == part.end() ? ptrdiff_t{-1} : at.first - part.begin();
      };
      for (const bool begun : {true, false}) {
        if (!begun && m == 1) {
          continue;
        }
        const auto some = run_rows(from, m, begun);
        EXPECT_EQ(differs(all.first, some.first), -1)
            << sum.text() << ": " << m << " rows, begun " << begun;
        EXPECT_EQ(differs(all.second, some.second), -1)
            << behind.text() << ": " << m << " rows, begun " << begun;
      }
    }
  }

  void check_rounding(F8Inputs inputs, int32_t m, int32_t k) {
    arena().reset();
    std::vector<float> x = rounded(normals(static_cast<size_t>(m * k), 5));
    std::fill_n(x.begin(), std::min(k, 256), 0.0F);  // a row or groups of zeros
    const ActView rows = upload_act(x, m, k);
    RoundInputsArgs args;
    args.x = rows.data;
    args.x_stride = rows.stride;
    args.inputs = inputs;
    args.input_scale = 0.011F;
    args.m = m;
    args.k = k;
    std::byte* memory = poisoned<std::byte>(cuda::f8_rows_bytes(inputs, m, k));
    args.out = cuda::f8_rows_at(memory, inputs, m, k);
    round_inputs(stream(), args);
    const Rounded want = round_on_host(x, m, k, inputs, args.input_scale);
    const auto numbers = download(args.out.numbers, static_cast<size_t>(m * args.out.pitch));
    const auto tokens = download(args.out.token_scales, static_cast<size_t>(m));
    const int32_t tiles = fp8_tiles_of(k);
    for (int32_t t = 0; t < m; ++t) {
      EXPECT_EQ(tokens[static_cast<size_t>(t)], want.token_scales[static_cast<size_t>(t)]) << t;
      for (int32_t i = 0; i < k; ++i) {
        ASSERT_EQ(static_cast<uint8_t>(numbers[static_cast<size_t>(t * args.out.pitch + i)]),
                  want.numbers[static_cast<size_t>(t * k + i)])
            << t << " " << i << " inputs " << static_cast<int>(inputs);
      }
    }
    if (inputs == F8Inputs::kGroup) {
      const auto groups =
          download(args.out.group_scales, static_cast<size_t>(tiles * args.out.group_stride));
      for (int32_t t = 0; t < m; ++t) {
        for (int32_t tile = 0; tile < tiles; ++tile) {
          EXPECT_EQ(groups[static_cast<size_t>(tile * args.out.group_stride + t)],
                    want.group_scales[static_cast<size_t>(t * tiles + tile)]);
        }
      }
    }
  }
};

constexpr F8Inputs kAllInputs[] = {F8Inputs::kRow, F8Inputs::kGroup, F8Inputs::kStatic};

TEST_F(Fp8LinearTest, InputsAreRoundedAsOnTheHost) {
  for (const F8Inputs inputs : kAllInputs) {
    check_rounding(inputs, 3, 200);
    check_rounding(inputs, 2, 4096);
    check_rounding(inputs, 2, 14344);
  }
}

TEST_F(Fp8LinearTest, MatchesSumsInDouble) {
  for (const F8Inputs inputs : kAllInputs) {
    check({96, 256, kStore, true, false, inputs});
    check({112, 200, kStore, false, true, inputs});
    check({256, 1096, kAdd, true, false, inputs});
    check({2 * 208, 320, kSwiGlu, false, true, inputs});
    check({64, 2048, kAdd, true, true, inputs});  // parts of k
  }
  check({4096, 520, kAdd, true, false, F8Inputs::kGroup, 128});
  check({2 * 1920, 320, kSwiGlu, false, true, F8Inputs::kGroup, 128});
}

TEST_F(Fp8LinearTest, ARowHasTheSameBitsAmongAnyNumberOfRows) {
  for (const F8Inputs inputs : kAllInputs) {
    check_rows({1024, 2048, kAdd, true, true, inputs},
               {2 * 1024, 1024, kSwiGlu, false, false, inputs});
    check_rows({4096, 4096, kAdd, true, false, inputs}, {6144, 4096, kStore, false, true, inputs});
    check_rows({320, 520, kAdd, true, false, inputs}, {112, 320, kStore, false, false, inputs});
    // 150 tiles: of 128 rows some CTAs take two.
    check_rows({320, 512, kAdd, true, false, inputs}, {9600, 320, kSwiGlu, false, true, inputs});
  }
  check_rows({4096, 4096, kAdd, true, false, F8Inputs::kGroup, 128},
             {2 * 1920, 4096, kSwiGlu, false, false, F8Inputs::kGroup, 128});
}

}  // namespace
}  // namespace warprow::testing
