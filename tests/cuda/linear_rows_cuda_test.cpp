// SPDX-License-Identifier: Apache-2.0
// With batch_invariant a row's results have the same bits among any number of rows, whichever kernels these take.
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

namespace warprow::testing {
namespace {

using enum LinearEpilogue;

constexpr int32_t kAllRows = 4096;
constexpr float kEps = 1e-6F;

std::vector<int32_t> numbers_of_rows() {
  std::vector<int32_t> out;
  for (int32_t m = 1; m <= 17; ++m) {
    out.push_back(m);
  }
  for (const int32_t m :
       {32, 33, 64, 65, 100, 127, 128, 129, 200, 256, 257, 300, 384, 385, 512, 513, 1000, 1025}) {
    out.push_back(m);
  }
  return out;
}

// A product, and what is around it in a model.
struct Product {
  int32_t n = 0;
  int32_t k = 0;
  LinearEpilogue epilogue = kStore;
  bool y_f32 = false;
  bool bias = false;
  [[nodiscard]] int32_t outputs() const { return epilogue == kSwiGlu ? n / 2 : n; }
  [[nodiscard]] LinearShape shape() const {
    return {n, k, y_f32 ? DType::kF32 : DType::kBF16, epilogue, bias, true};
  }
  [[nodiscard]] std::string text() const {
    return fmt::format("{} x {} epilogue {} f32 {}", n, k, static_cast<int>(epilogue), y_f32);
  }
};

class LinearRowsTest : public CudaTest {
 protected:
  static bool is_hopper() { return gpu().facts().compute_capability == 90; }

  // Device arrays of normally distributed numbers. Long ones repeat. nans: how many are behind them.
  void* random_bf16(size_t count, float scale, uint32_t seed, size_t nans = 0) {
    const std::vector<uint16_t> stretch = to_bf16(random(seed, scale, count));
    return repeated(stretch, count, nans);
  }
  float* random_f32(size_t count, float scale, uint32_t seed) {
    return repeated(random(seed, scale, count), count);
  }

  struct Loaded {
    Product product;
    const std::byte* w = nullptr;
    const float* bias = nullptr;
    std::byte* scratch = nullptr;
    ActView room;    // for the product of a gate
    ActView normed;  // for the normalised x
    View<OutputMax, 2> maxima = {};
  };
  Loaded load(const Product& product, uint32_t seed) {
    Loaded out;
    out.product = product;
    const auto n = static_cast<size_t>(product.n);
    const auto k = static_cast<size_t>(product.k);
    out.w = static_cast<const std::byte*>(
        random_bf16(n * k, 1.0F / std::sqrt(static_cast<float>(k)), seed));
    out.bias = product.bias ? random_f32(n, 1.0F, seed + 1) : nullptr;
    out.scratch = poisoned<std::byte>(cuda::linear_scratch_bytes(kAllRows, product.k));
    out.room =
        product.epilogue == kSwiGlu ? poisoned_act(DType::kBF16, kAllRows, product.n) : ActView();
    out.normed = poisoned_act(DType::kBF16, kAllRows, product.k);
    return out;
  }

  // Runs it on rows of x; the result is in y.
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
      args.norm_eps = kEps;
      args.normed = l.normed;
    }
    args.half_norm = half;
    args.next_norm = next;
    args.y = y;
    if (l.product.epilogue == kSwiGlu) {
      args.product = l.room;
      args.product.shape[0] = x.shape[0];
    }
    args.segments[0].w.kind = PackedKind::kBF16;
    args.segments[0].w.n = l.product.n;
    args.segments[0].w.k = l.product.k;
    args.segments[0].w.data = l.w;
    args.segments[0].bias = l.bias;
    args.num_segments = 1;
    args.epilogue = l.product.epilogue;
    args.maxima = l.maxima;
    args.batch_invariant = true;
    args.scratch = l.scratch;
    linear(stream(), args);
  }

  [[nodiscard]] ActView room(const Product& p) {
    return poisoned_act(p.y_f32 ? DType::kF32 : DType::kBF16, kAllRows, p.outputs());
  }
  [[nodiscard]] std::vector<std::byte> bytes(const ActView& act) {
    return download(static_cast<const std::byte*>(act.data),
                    static_cast<size_t>(act.shape[0] * act.stride) * dtype_bytes(act.dtype));
  }
  // Rows `first` to first + m - 1 of `all` must have these bits.
  static void expect_rows(const std::vector<std::byte>& all,
                          int32_t first,
                          int32_t m,
                          const std::vector<std::byte>& some,
                          const std::string& what) {
    const size_t row_bytes = all.size() / kAllRows;
    ASSERT_EQ(some.size(), row_bytes * static_cast<size_t>(m));
    size_t rows = 0;
    for (size_t t = 0; t < static_cast<size_t>(m); ++t) {
      const auto want =
          all.begin() + static_cast<std::ptrdiff_t>((static_cast<size_t>(first) + t) * row_bytes);
      const auto got = some.begin() + static_cast<std::ptrdiff_t>(t * row_bytes);
      rows += std::equal(got, got + static_cast<std::ptrdiff_t>(row_bytes), want) ? 0 : 1;
    }
    EXPECT_EQ(rows, 0U) << "rows differ: " << what << ", " << m << " rows from " << first;
  }

  // Products alone, of x in bf16, or of the norm of x in float32.
  void check_alone(const Product& product, bool norm) {
    arena().reset();
    const Loaded l = load(product, 3);
    const auto inputs = static_cast<size_t>(kAllRows) * static_cast<size_t>(product.k);
    const ActView x =
        norm ? ActView(DType::kF32, random_f32(inputs, 1.0F, 5), kAllRows, product.k)
             : ActView(DType::kBF16, random_bf16(inputs, 1.0F, 5), kAllRows, product.k);
    const float* weight = norm ? random_f32(static_cast<size_t>(product.k), 1.0F, 6) : nullptr;
    const std::vector<float> old =
        random(7, 1.0F, static_cast<size_t>(kAllRows) * static_cast<size_t>(product.n));
    const ActView y = room(product);
    const auto run_rows = [&](int32_t first, int32_t m) {
      const ActView at = y.rows(first, m);
      if (product.epilogue == kAdd) {
        put_old(at, old, first, product.n);
      }
      run(l, x.rows(first, m), at, weight);
      return bytes(at);
    };
    const std::vector<std::byte> all = run_rows(0, kAllRows);
    for (const int32_t m : numbers_of_rows()) {
      const int32_t first = m * 7 % 64;
      expect_rows(all, first, m, run_rows(first, m), product.text());
    }
  }

  // The maxima of a product are those of its float32 outputs. Rows of w repeat, so that outputs are equal, and one row of x
  // has a NaN.
  void check_maxima(int32_t n, int32_t k, const std::vector<int32_t>& numbers) {
    arena().reset();
    constexpr int32_t kDistinct = 41;  // rows of w
    constexpr int32_t kNanRow = 6;     // of x
    const int32_t most = std::ranges::max(numbers);
    std::vector<uint16_t> w = to_bf16(random(31, 0.1F, static_cast<size_t>(kDistinct * k)));
    std::vector<uint16_t> x = to_bf16(random(32, 1.0F, static_cast<size_t>(most * k)));
    x[static_cast<size_t>(kNanRow * k + 3)] = 0x7fc0;
    const Product stored{n, k, kStore, true};
    Loaded l;
    l.product = stored;
    l.w = reinterpret_cast<const std::byte*>(
        repeated(w, static_cast<size_t>(n) * static_cast<size_t>(k)));
    l.scratch = poisoned<std::byte>(cuda::linear_scratch_bytes(most, k));
    const ActView in(DType::kBF16, repeated(x, x.size()), most, k);
    const ActView y = poisoned_act(DType::kF32, most, n);
    const int32_t per_row = n / kMaxOutputs;
    auto* maxima = poisoned<OutputMax>(static_cast<size_t>(most) * static_cast<size_t>(per_row));
    for (const int32_t m : numbers) {
      ASSERT_TRUE(leaves_maxima(gpu().facts(), stored.shape(), m)) << m;
      run(l, in.rows(0, m), y.rows(0, m));
      const auto count = static_cast<size_t>(m) * static_cast<size_t>(n);
      const std::vector<float> outputs = download(static_cast<const float*>(y.data), count);
      Loaded largest = l;
      largest.product.epilogue = kMax;
      largest.maxima = make_view(maxima, m, per_row);
      run(largest, in.rows(0, m), y.rows(0, m));
      const std::vector<OutputMax> got =
          download(maxima, static_cast<size_t>(m) * static_cast<size_t>(per_row));
      size_t wrong = 0;
      for (size_t i = 0; i < got.size(); ++i) {
        const auto* const first = outputs.data() + i * kMaxOutputs;
        const auto at = std::max_element(first, first + kMaxOutputs);  // the first one
        const auto number = static_cast<int32_t>(i % static_cast<size_t>(per_row)) * kMaxOutputs +
                            static_cast<int32_t>(at - first);
        const bool nan = i / static_cast<size_t>(per_row) == kNanRow;
        wrong += nan ? !std::isnan(got[i].value) : got[i].value != *at || got[i].output != number;
      }
      EXPECT_EQ(wrong, 0U) << "maxima of " << n << " x " << k << ", " << m << " rows";
    }
  }

  // A sum that does the first half of a norm, and the product that does the second.
  void check_halves(const Product& sum, const Product& behind) {
    arena().reset();
    ASSERT_TRUE(halved_norm_rows(gpu().facts(), sum.shape(), behind.shape()).has(1));
    const Loaded first_half = load(sum, 11);
    const Loaded second_half = load(behind, 13);
    const auto inputs = static_cast<size_t>(kAllRows) * static_cast<size_t>(sum.k);
    const ActView x(DType::kBF16, random_bf16(inputs, 1.0F, 15), kAllRows, sum.k);
    const std::vector<float> old =
        random(17, 1.0F, static_cast<size_t>(kAllRows) * static_cast<size_t>(sum.n));
    const ActView residual = room(sum);
    const ActView y = room(behind);
    HalfNorm half;
    half.weight = make_view<const float>(random_f32(static_cast<size_t>(sum.n), 1.0F, 19), sum.n);
    half.rows = poisoned_act(DType::kBF16, kAllRows, sum.n);
    half.squares = poisoned<float>(static_cast<size_t>(half_norm_squares(kAllRows, sum.n)));
    std::vector<std::byte> all[3];
    const auto run_rows = [&](int32_t first, int32_t m, std::vector<std::byte>(&out)[3]) {
      const ActView at = residual.rows(0, m);
      put_old(at, old, first, sum.n);
      run(first_half, x.rows(first, m), at, nullptr, nullptr, &half);
      out[0] = bytes(at);
      out[1] = bytes(half.rows.rows(0, m));
      run(second_half, at, y.rows(0, m), half.weight.data, &half);
      out[2] = bytes(y.rows(0, m));
    };
    run_rows(0, kAllRows, all);
    for (const int32_t m : numbers_of_rows()) {
      const int32_t first = m * 7 % 64;
      std::vector<std::byte> some[3];
      run_rows(first, m, some);
      expect_rows(all[0], first, m, some[0], sum.text() + ": sums");
      expect_rows(all[1], first, m, some[1], sum.text() + ": weighted rows");
      expect_rows(all[2], first, m, some[2], behind.text() + " behind " + sum.text());
    }
  }

 private:
  static constexpr size_t kStretch = (1 << 21) + 37;

  static std::vector<float> random(uint32_t seed, float scale, size_t count) {
    std::mt19937 rng(seed);
    std::normal_distribution<float> normal(0.0F, scale);
    std::vector<float> drawn(std::min(count, kStretch));
    for (float& v : drawn) {
      v = normal(rng);
    }
    return drawn;
  }
  template <typename T>
  T* repeated(const std::vector<T>& stretch, size_t count, size_t nans = 0) {
    T* data = poisoned<T>(count + nans);
    for (size_t at = 0; at < count; at += stretch.size()) {
      stream().copy_to_device(
          data + at, stretch.data(), std::min(stretch.size(), count - at) * sizeof(T));
    }
    stream().synchronize();
    return data;
  }
  // Row t has old row first + t, of a matrix that repeats a stretch.
  void put_old(const ActView& y, const std::vector<float>& old, int32_t first, int32_t n) {
    const auto count = static_cast<size_t>(y.shape[0]) * static_cast<size_t>(n);
    std::vector<float> values(count);
    for (size_t i = 0; i < count; ++i) {
      values[i] = old[(static_cast<size_t>(first) * static_cast<size_t>(n) + i) % old.size()];
    }
    stream().copy_to_device(y.data, values.data(), count * sizeof(float));
    stream().synchronize();
  }
};

TEST_F(LinearRowsTest, BatchInvariantProducts) {
  if (!is_hopper()) {
    GTEST_SKIP() << "the kernels of batch-invariant products need a GPU of compute capability 9.0";
  }
  check_alone({4096, 1024, kStore, false, true}, true);   // 0.6B qkv
  check_alone({1024, 2048, kAdd, true, true}, false);     // 0.6B o
  check_alone({6144, 1024, kSwiGlu, false, true}, true);  // 0.6B gate and up
  check_alone({1024, 3072, kAdd, true}, false);           // 0.6B down
  check_alone({65604, 256, kStore, true}, true);          // a head
  check_alone({6144, 4096, kStore}, true);                // 8B qkv
  check_alone({4096, 4096, kAdd, true}, false);           // 8B o
  check_alone({4096, 12288, kAdd, true}, false);          // 8B down
  check_alone({2048, 4096, kStore, true}, false);
  check_alone({600, 584, kStore, false, true}, false);  // odd sizes
  check_alone({100, 200, kAdd, true, true}, false);
  check_alone({2 * 1000, 136, kSwiGlu, false, true}, false);
  check_alone({40, 1096, kStore, true}, false);
}

TEST_F(LinearRowsTest, BatchInvariantGateOfOneWave) {
  if (!is_hopper()) {
    GTEST_SKIP() << "the kernels of batch-invariant products need a GPU of compute capability 9.0";
  }
  check_alone({24576, 4096, kSwiGlu}, true);  // 8B gate and up
}

TEST_F(LinearRowsTest, BatchInvariantNormsInHalves) {
  if (!is_hopper()) {
    GTEST_SKIP() << "the kernels of batch-invariant products need a GPU of compute capability 9.0";
  }
  check_halves({1024, 2048, kAdd, true}, {6144, 1024, kSwiGlu});
  check_halves({1024, 3072, kAdd, true, true}, {4096, 1024, kStore, false, true});
  check_halves({4096, 12288, kAdd, true}, {6144, 4096, kStore});
  check_halves({320, 512, kAdd, true}, {2 * 296, 320, kSwiGlu, false, true});
  check_halves({64, 136, kAdd, true}, {104, 64, kStore});
}

TEST_F(LinearRowsTest, MaximaAreThoseOfTheOutputs) {
  if (!is_hopper()) {
    GTEST_SKIP() << "the kernels of batch-invariant products need a GPU of compute capability 9.0";
  }
  std::vector<int32_t> numbers = numbers_of_rows();
  std::erase_if(numbers, [](int32_t m) { return m <= 8; });
  check_maxima(2112, 320, numbers);
  check_maxima(512, 136, numbers);
  check_maxima(64, 64, numbers);
  check_maxima(65'600, 256, {9, 33, 65, 128, 129, 257, 300});  // a head
}

// Every plan of every kernel with the same parts of k gives the same.
TEST_F(LinearRowsTest, EqualPartsGiveEqualBits) {
  if (!is_hopper()) {
    GTEST_SKIP() << "the kernels of batch-invariant products need a GPU of compute capability 9.0";
  }
  for (const auto& [rows, n, k, epilogue] : {std::tuple{1, 1152, 2112, kStore},
                                             {8, 1152, 2112, kStore},
                                             {5, 1152, 2120, kStore},
                                             {5, 2 * 136, 1088, kSwiGlu},
                                             {8, 4096, 1024, kStore}}) {
    arena().reset();
    const int32_t outputs = epilogue == kSwiGlu ? n / 2 : n;
    cuda::Sm90GemmArgs args;
    args.w = random_bf16(static_cast<size_t>(n) * static_cast<size_t>(k), 0.05F, 21);
    // Boxes of x may hold rows that are not x's.
    constexpr int32_t kCapacity = 128;
    args.x = random_bf16(static_cast<size_t>(rows) * static_cast<size_t>(k),
                         1.0F,
                         22,
                         static_cast<size_t>(kCapacity - rows) * static_cast<size_t>(k));
    args.x_capacity = kCapacity;
    args.x_stride = k;
    args.m = rows;
    args.n = n;
    args.k = k;
    args.epilogue = epilogue;
    args.y_stride = outputs;
    const auto count = static_cast<size_t>(rows) * static_cast<size_t>(outputs);
    auto* y = poisoned<uint16_t>(count);
    args.y = y;
    for (const int32_t parts : {1, 2, 4, 8}) {
      std::vector<uint16_t> first;
      const auto compare = [&](const std::string& plan) {
        const std::vector<uint16_t> got = download(y, count);
        stream().fill(y, 0xff, count * 2);
        first = first.empty() ? got : first;
        EXPECT_TRUE(got == first) << rows << " rows, " << n << " x " << k << ", " << parts
                                  << " parts: " << plan;
      };
      for (const int32_t cols : {32, 64, 128}) {
        for (const int32_t groups : {1, 2, 3}) {
          if (groups == 2 && cols < 128) {
            continue;
          }
          cuda::Sm90GemmPlan plan{.cols = cols, .groups = groups, .split = parts, .stages = 3};
          cuda::sm90_bf16_gemm_small_m(stream(), args, plan);
          compare(fmt::format("small M, {} columns, {} groups", cols, groups));
        }
      }
      const bool warps = cuda::sm90_warp_rows(k) > 0;
      for (int32_t groups = 1; warps && groups * parts <= cuda::kMaxSm90Warps; ++groups) {
        for (const int32_t stages : {2, 3, 5}) {
          cuda::Sm90WarpPlan plan =
              cuda::sm90_warp_plan(rows, n, k, epilogue, parts, gpu().facts().num_sms);
          plan.groups = groups;
          plan.stages = stages;
          for (const int32_t blocks : {1, 7, plan.num_blocks}) {
            if (cuda::sm90_warp_shared_bytes(plan, rows) > size_t{220} << 10) {
              continue;
            }
            plan.num_blocks = std::min(blocks, plan.num_units);
            cuda::sm90_bf16_gemm_warps(stream(), args, plan);
            compare(fmt::format("warps, {} groups, {} stages, {} blocks", groups, stages, blocks));
          }
        }
      }
      for (const int32_t cols : {parts == 1 ? 256 : 64, 128, 192}) {
        cuda::sm90_bf16_gemm_large_m(stream(), args, {cols, parts});
        compare(fmt::format("large M, {} columns", cols));
      }
    }
  }
}

}  // namespace
}  // namespace warprow::testing
