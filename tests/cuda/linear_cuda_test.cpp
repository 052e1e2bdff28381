// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/half_norm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/linear_case.h"

#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

namespace warprow::testing {
namespace {

class LinearCudaTest : public CudaTest {
 protected:
  static bool is_hopper() { return gpu().facts().compute_capability == 90; }

  // The whole y buffer, including padding.
  std::vector<float> run(const LinearCase& c, const LinearInputs& in) {
    const LinearArgs args = args_of(c, in);
    linear(stream(), args);
    return download_act(args.y);
  }

  LinearArgs args_of(const LinearCase& c, const LinearInputs& in) {
    const int64_t cols = c.outputs() + 2 * c.y_pad;
    std::vector<float> padded_x(static_cast<size_t>(c.m) * static_cast<size_t>(c.k + c.x_pad));
    for (size_t t = 0; t < static_cast<size_t>(c.m); ++t) {
      for (size_t i = 0; i < static_cast<size_t>(c.k); ++i) {
        padded_x[t * static_cast<size_t>(c.k + c.x_pad) + i] =
            in.x[t * static_cast<size_t>(c.k) + i];
      }
    }
    LinearArgs args;
    ActView x = c.norm ? ActView(DType::kF32, upload(padded_x), c.m, c.k, c.k + c.x_pad)
                       : ActView(DType::kBF16, upload(to_bf16(padded_x)), c.m, c.k, c.k + c.x_pad);
    args.x = x;
    if (c.norm) {
      args.norm_weight = make_view<const float>(upload(in.norm), c.k);
      args.norm_eps = c.eps;
      args.normed = poisoned_act(DType::kBF16, c.m, c.k);
    }
    args.y = poisoned_act(c.y_f32 ? DType::kF32 : DType::kBF16, c.m, cols);
    if (c.epilogue == LinearEpilogue::kAdd) {
      fill_y(c, in, args.y);
    }
    if (c.epilogue == LinearEpilogue::kSwiGlu) {
      args.product = poisoned_act(DType::kBF16, c.m, c.n);
    }
    LinearSegment& segment = args.segments[0];
    segment.w.kind = PackedKind::kBF16;
    segment.w.n = c.n;
    segment.w.k = c.k;
    segment.w.data = reinterpret_cast<const std::byte*>(upload(to_bf16(in.w)));
    segment.bias = c.bias ? upload(in.bias) : nullptr;
    segment.y_col = c.y_pad;
    args.num_segments = 1;
    args.epilogue = c.epilogue;
    args.batch_invariant = c.batch_invariant;
    args.scratch = poisoned<std::byte>(cuda::linear_scratch_bytes(c.m, c.k));
    return args;
  }

  void fill_y(const LinearCase& c, const LinearInputs& in, const ActView& y) {
    std::vector<float> all(static_cast<size_t>(y.shape[0] * y.shape[1]), std::nanf(""));
    for (int64_t t = 0; t < c.m; ++t) {
      for (int64_t j = 0; j < c.outputs(); ++j) {
        all[static_cast<size_t>(t * y.stride + c.y_pad + j)] =
            in.y[static_cast<size_t>(t * c.outputs() + j)];
      }
    }
    stream().copy_to_device(y.data, all.data(), all.size() * sizeof(float));
    stream().synchronize();
  }

  void check(const LinearCase& c, uint32_t seed = 1) {
    SCOPED_TRACE(c.text());
    arena().reset();
    const LinearInputs in = c.inputs(seed);
    const std::vector<double> want = c.reference(in);
    const std::vector<float> got = run(c, in);
    const int64_t cols = c.outputs() + 2 * c.y_pad;
    double error = 0.0;
    double size = 0.0;
    for (int64_t t = 0; t < c.m; ++t) {
      for (int64_t j = 0; j < cols; ++j) {
        const float v = got[static_cast<size_t>(t * cols + j)];
        if (j < c.y_pad || j >= c.y_pad + c.outputs()) {
          ASSERT_TRUE(std::isnan(v)) << "wrote outside the output: row " << t << " column " << j;
          continue;
        }
        const double w = want[static_cast<size_t>(t * c.outputs() + j - c.y_pad)];
        ASSERT_FALSE(std::isnan(v)) << "row " << t << " column " << j;
        ASSERT_NEAR(v, w, 0.03 * std::fabs(w) + 0.05) << "row " << t << " column " << j;
        error += (v - w) * (v - w);
        size += w * w;
      }
    }
    // bf16 operands after a norm, and a bf16 output, have a relative rounding error of 2^-9. The sums themselves are
    // far more exact.
    EXPECT_LT(std::sqrt(error / size), c.norm || !c.y_f32 ? 6e-3 : 2e-5);
  }
};

TEST_F(LinearCudaTest, EveryNumberOfRows) {
  for (const int32_t m : {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 64, 100, 129, 256, 257}) {
    check({.m = m, .n = 256, .k = 512, .y_f32 = true});
    check({.m = m, .n = 256, .k = 512});
  }
}

TEST_F(LinearCudaTest, OddSizes) {
  for (const int32_t m : {1, 5, 16, 40, 64}) {
    for (const int32_t k : {8, 24, 64, 72, 200, 576, 1000, 1536}) {
      check({.m = m, .n = 40, .k = k, .y_f32 = true});
    }
    for (const int32_t n : {1, 7, 8, 17, 33, 2113}) {
      check({.m = m, .n = n, .k = 136, .y_f32 = true});
    }
  }
}

TEST_F(LinearCudaTest, GatesOfOneWaveOfLargeTiles) {
  for (const int32_t m : {33, 70, 200}) {
    const LinearCase c = {
        .m = m, .n = 131 * 192 + 16, .k = 72, .epilogue = LinearEpilogue::kSwiGlu};
    check(c);
  }
  check({.m = 130,
         .n = 128 * 192,
         .k = 192,
         .epilogue = LinearEpilogue::kSwiGlu,
         .norm = true,
         .bias = true});
}

TEST_F(LinearCudaTest, ManyTiles) {  // several tiles per CTA, and a partial last one
  for (const int32_t m : {1, 8, 12, 16}) {
    check({.m = m, .n = 132 * 16 * 2 + 24, .k = 96, .y_f32 = true});
    check({.m = m, .n = 132 * 32 * 4 + 8, .k = 64, .y_f32 = true});
  }
}

TEST_F(LinearCudaTest, Epilogues) {
  for (const int32_t m : {1, 4, 11, 16, 25, 50, 128, 190}) {
    for (const bool bias : {false, true}) {
      check({.m = m, .n = 192, .k = 320, .bias = bias});
      check({.m = m,
             .n = 192,
             .k = 320,
             .epilogue = LinearEpilogue::kAdd,
             .bias = bias,
             .y_f32 = true});
      check({.m = m, .n = 208, .k = 320, .epilogue = LinearEpilogue::kSwiGlu, .bias = bias});
      check({.m = m, .n = 20, .k = 64, .epilogue = LinearEpilogue::kSwiGlu, .bias = bias});
    }
  }
}

TEST_F(LinearCudaTest, NormInsideOrBefore) {
  for (const int32_t m : {1, 2, 4, 9, 16, 24}) {
    for (const int32_t k : {64, 576, 1024, 4096}) {
      check({.m = m, .n = 128, .k = k, .norm = true, .y_f32 = true});
    }
    check({.m = m, .n = 144, .k = 1024, .epilogue = LinearEpilogue::kSwiGlu, .norm = true});
  }
}

// A GEMM that writes the sums of squares for the next norm, and a GEMM that applies this norm.
TEST_F(LinearCudaTest, NormInHalves) {
  for (const int32_t m : {8, 9, 17, 32, 45, 64, 100, 128, 300}) {
    for (const LinearEpilogue epilogue : {LinearEpilogue::kStore, LinearEpilogue::kSwiGlu}) {
      arena().reset();
      const LinearCase sum = {
          .m = m, .n = 320, .k = 512, .epilogue = LinearEpilogue::kAdd, .y_f32 = true};
      const LinearCase behind = {.m = m, .n = 288, .k = 320, .epilogue = epilogue, .norm = true};
      LinearInputs in = behind.inputs(9);
      HalfNorm norm;  // only for shapes where the split norm is faster
      norm.weight = make_view<const float>(upload(in.norm), behind.k);
      norm.rows = poisoned_act(DType::kBF16, m, behind.k);
      norm.squares = poisoned<float>(static_cast<size_t>(m * behind.k / 64));
      const bool halved = halved_norm_rows(gpu().facts(),
                                           {sum.n, sum.k, DType::kF32, LinearEpilogue::kAdd},
                                           {behind.n, behind.k, DType::kBF16, epilogue})
                              .has(m);
      EXPECT_EQ(halved, is_hopper() && m > 8 && m <= cuda::kMaxSm90GemmRows);
      LinearArgs first = args_of(sum, sum.inputs(8));
      first.next_norm = halved ? &norm : nullptr;
      linear(stream(), first);
      in.x = download_act(first.y);
      LinearArgs second = args_of(behind, in);
      second.x = first.y;
      second.half_norm = halved ? &norm : nullptr;
      linear(stream(), second);
      const std::vector<double> want = behind.reference(in);
      const std::vector<float> got = download_act(second.y);
      for (size_t i = 0; i < want.size(); ++i) {
        ASSERT_NEAR(got[i], want[i], 0.03 * std::fabs(want[i]) + 0.05)
            << behind.text() << " at " << i;
      }
    }
  }
}

// Sums of squares are those of 16 lanes with four columns each, in one tree.
TEST_F(LinearCudaTest, FirstHalfOfANormAtAnyWidth) {
  for (const int64_t width : {64, 100, 320, 1024, 1088, 2048, 2880, 4096, 4160, 12'292}) {
    for (const int64_t toks : {int64_t{3}, int64_t{kMaxQuarteredRows} + 3}) {
      arena().reset();
      const std::vector<float> y = testing::normals(static_cast<size_t>(toks * width), 3);
      const std::vector<float> weight = testing::normals(static_cast<size_t>(width), 4);
      const bool quartered = toks <= kMaxQuarteredRows;
      const int64_t sums = (width + 63) / 64;
      HalfNorm half;
      half.weight = make_view<const float>(upload(weight), width);
      half.rows = poisoned_act(DType::kBF16, toks, width);
      half.squares = poisoned<float>(static_cast<size_t>(toks * sums * (quartered ? 4 : 1)));
      cuda::begin_norm(stream(), make_view<const float>(upload(y), toks, width), half);
      std::vector<float> rows(y.size());
      std::vector<float> squares;
      for (int64_t t = 0; t < toks; ++t) {
        const float* row = y.data() + t * width;
        for (int64_t i = 0; i < width; ++i) {
          rows[static_cast<size_t>(t * width + i)] =
              bf16_to_f32(f32_to_bf16(row[i] * weight[static_cast<size_t>(i)]));
        }
        for (int64_t first = 0; first < sums * 64; first += 64) {
          const auto at = [&](int64_t i) { return first + i < width ? row[first + i] : 0.0F; };
          const auto lane = [&](int64_t l) {
            const float low = std::fma(at(4 * l), at(4 * l), at(4 * l + 1) * at(4 * l + 1));
            const float high =
                std::fma(at(4 * l + 2), at(4 * l + 2), at(4 * l + 3) * at(4 * l + 3));
            return low + high;
          };
          std::array<float, 4> quarters{};
          for (int64_t q = 0; q < 4; ++q) {
            quarters[static_cast<size_t>(q)] =
                (lane(q) + lane(q + 8)) + (lane(q + 4) + lane(q + 12));
          }
          if (quartered) {
            squares.insert(squares.end(), quarters.begin(), quarters.end());
          } else {
            squares.push_back((quarters[0] + quarters[2]) + (quarters[1] + quarters[3]));
          }
        }
      }
      EXPECT_EQ(download(half.squares, squares.size()), squares) << width << ", " << toks;
      EXPECT_EQ(download_act(half.rows), rows) << width << ", " << toks;
    }
  }
}

TEST_F(LinearCudaTest, RowsWithinWiderOnes) {
  for (const int32_t m : {1, 3, 16, 35, 77}) {
    check({.m = m, .n = 61, .k = 128, .y_f32 = true, .y_pad = 3, .x_pad = 16});
    check({.m = m, .n = 64, .k = 128, .y_f32 = true, .y_pad = 8, .x_pad = 16});
    check({.m = m, .n = 64, .k = 128, .y_pad = 8, .x_pad = 16});
    check({.m = m, .n = 64, .k = 128, .epilogue = LinearEpilogue::kAdd, .y_f32 = true, .y_pad = 8});
  }
}

TEST_F(LinearCudaTest, NoRowsDoNothing) {
  LinearArgs args;
  args.x = ActView(DType::kBF16, poisoned<uint16_t>(8), 0, 8);
  args.y = ActView(DType::kBF16, poisoned<uint16_t>(8), 0, 8);
  args.segments[0].w.kind = PackedKind::kBF16;
  args.segments[0].w.n = 8;
  args.segments[0].w.k = 8;
  args.num_segments = 1;
  linear(stream(), args);
  stream().synchronize();
}

// The order of additions does not depend on the plan.
TEST_F(LinearCudaTest, EveryPlanOfSm80GemmGivesTheSame) {
  for (const LinearEpilogue epilogue : {LinearEpilogue::kStore, LinearEpilogue::kSwiGlu}) {
    for (const int32_t m : {1, 7, 8, 13, 16, 27, 32}) {
      arena().reset();
      LinearCase c = {.m = m, .n = 132 * 48 + 40, .k = 1416, .epilogue = epilogue};
      const LinearInputs in = c.inputs(5);
      cuda::Sm80GemmArgs args;
      args.w = upload(to_bf16(in.w));
      args.x = upload(to_bf16(in.x));
      args.x_stride = c.k;
      args.y = poisoned<uint16_t>(static_cast<size_t>(m * c.outputs()));
      args.y_stride = c.outputs();
      args.epilogue = epilogue;
      args.m = m;
      args.n = c.n;
      args.k = c.k;
      std::vector<uint16_t> first;
      for (const int32_t tile_rows : {16, 32}) {
        for (const int32_t teams : {1, 2}) {
          for (const int32_t stages : {1, 2, 4}) {
            cuda::Sm80GemmPlan plan = {
                .tile_rows = tile_rows, .num_teams = teams, .stages = stages};
            cuda::finish_plan(plan, args, gpu().facts());
            if (plan.stages == 0) {
              continue;
            }
            stream().fill(args.y, 0xff, static_cast<size_t>(m * c.outputs()) * 2);
            cuda::sm80_bf16_gemm_small_m(stream(), args, plan);
            const std::vector<uint16_t> y =
                download(static_cast<uint16_t*>(args.y), static_cast<size_t>(m * c.outputs()));
            first = first.empty() ? y : first;
            ASSERT_EQ(y, first) << c.text() << " plan " << tile_rows << " " << teams << " "
                                << stages;
          }
        }
      }
    }
  }
}

// Plans whose CTAs share a tile differ only in where the sums are split. Other plans give equal results.
TEST_F(LinearCudaTest, EveryPlanOfTheWideKernel) {
  if (!is_hopper()) {
    GTEST_SKIP() << "sm90_bf16_gemm_small_m needs a GPU of compute capability 9.0";
  }
  for (const LinearEpilogue epilogue :
       {LinearEpilogue::kStore, LinearEpilogue::kAdd, LinearEpilogue::kSwiGlu}) {
    for (const int32_t cols : {32, 64, 128}) {
      arena().reset();
      const bool add = epilogue == LinearEpilogue::kAdd;
      const LinearCase c = {.m = cols - 5, .n = 600, .k = 584, .epilogue = epilogue, .y_f32 = true};
      const LinearInputs in = c.inputs(6);
      const std::vector<double> want = c.reference(in);
      cuda::Sm90GemmArgs args;
      args.w = upload(to_bf16(in.w));
      args.x = upload(to_bf16(in.x));
      args.x_stride = c.k;
      const auto count = static_cast<size_t>(c.m * c.outputs());
      args.y = poisoned<float>(count);
      args.y_f32 = true;
      args.y_stride = c.outputs();
      args.epilogue = epilogue;
      args.m = c.m;
      args.n = c.n;
      args.k = c.k;
      for (const int32_t split : {1, 2, 4, 8}) {
        std::vector<float> first;
        for (const auto& [groups, stages] :
             {std::pair{1, 4}, {1, 3}, {1, 8}, {3, 2}, {3, 3}, {3, 4}}) {
          const cuda::Sm90GemmPlan plan = {cols, groups, split, stages};
          if (cuda::sm90_gemm_stages(plan, cuda::kSm90GemmSharedBytes) < stages) {
            continue;
          }
          if (add) {
            stream().copy_to_device(args.y, in.y.data(), count * sizeof(float));
          } else {
            stream().fill(args.y, 0xff, count * sizeof(float));
          }
          cuda::sm90_bf16_gemm_small_m(stream(), args, plan);
          const std::vector<float> y = download(static_cast<float*>(args.y), count);
          for (size_t i = 0; i < count; ++i) {
            ASSERT_NEAR(y[i], want[i], 1e-4 * std::fabs(want[i]) + 1e-4)
                << c.text() << " plan " << groups << " " << split << " at " << i;
          }
          first = first.empty() ? y : first;
          ASSERT_EQ(y, first) << c.text() << " plan " << groups << " " << split;
        }
      }
    }
  }
}

// The first row's result does not depend on the rows after it.
TEST_F(LinearCudaTest, FewRowsDoNotChangeARow) {
  for (const LinearEpilogue epilogue : {LinearEpilogue::kStore, LinearEpilogue::kSwiGlu}) {
    LinearCase c = {.m = 8, .n = 272, .k = 1096, .epilogue = epilogue};
    const LinearInputs in = c.inputs(3);
    const std::vector<float> all = run(c, in);
    for (c.m = 1; c.m < 8; ++c.m) {
      const std::vector<float> some = run(c, in);
      for (size_t i = 0; i < some.size(); ++i) {
        ASSERT_EQ(some[i], all[i]) << c.text() << " at " << i;
      }
    }
  }
}

}  // namespace
}  // namespace warprow::testing
