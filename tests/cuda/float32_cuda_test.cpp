// SPDX-License-Identifier: Apache-2.0
// The float32 kernels on CUDA: near the exact results, and with the same bits for a row wherever it stands.
#include "kernels/attention/paged_attention.h"
#include "kernels/linear/linear.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/attention_case.h"
#include "tests/support/linear_case.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iostream>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace warprow::testing {
namespace {

using enum LinearEpilogue;

// Random numbers that bf16 and TF32 do not hold, so that a kernel which rounds is found.
LinearInputs float_inputs(const LinearCase& c, uint32_t seed) {
  LinearInputs in = c.inputs(seed);
  in.x = normals(in.x.size(), seed + 10, 1.3F);
  in.w = normals(in.w.size(), seed + 11, 1.0F / std::sqrt(static_cast<float>(c.k)));
  in.bias = normals(in.bias.size(), seed + 12);
  return in;
}

class Float32Linears : public CudaTest {
 protected:
  // The operation on all rows, with room for them.
  LinearArgs args_of(const LinearCase& c, const LinearInputs& in) {
    LinearArgs args;
    args.x = ActView(DType::kF32, spread(in.x, c.m, c.k, c.x_pad), c.m, c.k, c.k + c.x_pad);
    if (c.norm) {
      args.norm_weight = make_view<const float>(upload(in.norm), c.k);
      args.norm_eps = c.eps;
      args.normed = poisoned_act(DType::kF32, c.m, c.k);
    }
    args.y = poisoned_act(DType::kF32, c.m, c.outputs() + 2 * c.y_pad);
    args.product = poisoned_act(DType::kF32, c.m, c.n);
    LinearSegment& segment = args.segments[0];
    segment.w.kind = PackedKind::kF32;
    segment.w.n = c.n;
    segment.w.k = c.k;
    segment.w.data = reinterpret_cast<const std::byte*>(upload(in.w));
    segment.bias = c.bias ? upload(in.bias) : nullptr;
    segment.y_col = c.y_pad;
    args.num_segments = 1;
    args.epilogue = c.epilogue;
    return args;
  }

  // Runs rows `first` to first + m - 1. Returns these rows of y, with its padding columns.
  std::vector<float> run_rows(
      const LinearCase& c, const LinearInputs& in, LinearArgs args, int32_t first, int32_t m) {
    args.y = args.y.rows(first, m);
    const auto cols = static_cast<size_t>(args.y.stride);
    std::vector<float> old(static_cast<size_t>(m) * cols, std::nanf(""));
    for (size_t t = 0; t < static_cast<size_t>(m) && c.epilogue == kAdd; ++t) {
      const auto outputs = static_cast<size_t>(c.outputs());
      std::copy_n(
          in.y.begin() + static_cast<std::ptrdiff_t>((static_cast<size_t>(first) + t) * outputs),
          outputs,
          old.begin() + static_cast<std::ptrdiff_t>(t * cols) + c.y_pad);
    }
    stream().copy_to_device(args.y.data, old.data(), old.size() * sizeof(float));
    stream().synchronize();
    const auto* x = static_cast<const float*>(args.x.data) + first * args.x.stride;
    args.x = make_strided(x, m, c.k, args.x.stride);
    linear(stream(), args);
    return download(static_cast<const float*>(args.y.data), old.size());
  }

  void check_linear(const LinearCase& c, uint32_t seed = 1) {
    SCOPED_TRACE(c.text());
    arena().reset();
    const LinearInputs in = float_inputs(c, seed);
    const std::vector<double> want = c.reference(in);
    const std::vector<float> got = run_rows(c, in, args_of(c, in), 0, c.m);
    double size = 0.0;
    for (const double w : want) {
      size += w * w;
    }
    const double rms = std::sqrt(size / static_cast<double>(want.size()));
    const int64_t cols = c.outputs() + 2 * c.y_pad;
    double worst = 0.0;
    for (int64_t t = 0; t < c.m; ++t) {
      for (int64_t j = 0; j < cols; ++j) {
        const float v = got[static_cast<size_t>(t * cols + j)];
        if (j < c.y_pad || j >= c.y_pad + c.outputs()) {
          ASSERT_TRUE(std::isnan(v)) << "wrote outside the output: row " << t << " column " << j;
          continue;
        }
        const double w = want[static_cast<size_t>(t * c.outputs() + j - c.y_pad)];
        const double error = std::abs(v - w) / (std::abs(w) + rms);
        ASSERT_TRUE(error <= 1e-5) << "row " << t << " column " << j << ": " << v << " for " << w;
        worst = std::max(worst, error);
      }
    }
    worst_ = std::max(worst_, worst);
  }

  // All rows at once, and every part of them.
  void check_rows(const LinearCase& c, const std::vector<int32_t>& counts) {
    SCOPED_TRACE(c.text());
    arena().reset();
    const LinearInputs in = float_inputs(c, 5);
    const LinearArgs args = args_of(c, in);
    const std::vector<float> all = run_rows(c, in, args, 0, c.m);
    ASSERT_FALSE(std::ranges::any_of(all, [](float v) { return std::isnan(v); }));
    const auto cols = static_cast<size_t>(c.outputs());
    for (const int32_t m : counts) {
      const int32_t first = m * 7 % (c.m - m + 1);
      const std::vector<float> some = run_rows(c, in, args, first, m);
      int64_t differ = 0;
      for (size_t i = 0; i < some.size(); ++i) {
        differ += some[i] != all[static_cast<size_t>(first) * cols + i] ? 1 : 0;
      }
      EXPECT_EQ(differ, 0) << "outputs differ: " << m << " rows from " << first;
    }
  }

  double worst_ = 0.0;

 private:
  // Rows with NaN between them.
  float* spread(const std::vector<float>& values, int32_t rows, int32_t cols, int32_t pad) {
    const auto width = static_cast<size_t>(cols);
    const size_t stride = width + static_cast<size_t>(pad);
    std::vector<float> out(static_cast<size_t>(rows) * stride, std::nanf(""));
    for (size_t t = 0; t < static_cast<size_t>(rows); ++t) {
      std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(t * width),
                  width,
                  out.begin() + static_cast<std::ptrdiff_t>(t * stride));
    }
    return upload(out);
  }
};

// A case with a float32 cache. A token's key and value depend on its row, position and head alone, so that cases with
// other blocks hold the same numbers. Slots without a token are NaN.
struct Float32Attention : AttentionLayout {
  Float32Attention(const AttentionCase& of, uint32_t seed)
      : Float32Attention(of, seed, std::mt19937(seed)) {}

  std::vector<float> cache;
  std::vector<float> q;  // [num_toks, q_stride]
  std::vector<float> sinks;

  // Rows of the whole case as arguments; out and lse are NaN.
  PagedAttentionArgs args(CaseMemory& memory) const {
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    PagedAttentionArgs out = AttentionLayout::args(memory);
    out.kv.dtype = DType::kF32;
    auto* base = reinterpret_cast<float*>(memory.put_as(DType::kF32, cache));
    out.kv.k = reinterpret_cast<std::byte*>(base + keys_at);
    out.kv.v = reinterpret_cast<std::byte*>(base + values_at);
    out.q = ActView(DType::kF32, memory.put(q), num_toks(), q_cols(), q_stride);
    const std::vector<float> empty(static_cast<size_t>(num_toks() * q_cols()), kNan);
    out.out = ActView(DType::kF32, memory.put(empty), num_toks(), q_cols());
    const std::vector<float> no_lse(static_cast<size_t>(num_toks() * c.q_heads), kNan);
    out.lse = make_view(memory.put(no_lse), num_toks(), int64_t{c.q_heads});
    if (c.sinks) {
      out.sinks = make_view<const float>(memory.put(sinks), c.q_heads);
    }
    return out;
  }

 private:
  Float32Attention(const AttentionCase& of, uint32_t seed, std::mt19937 rng)
      : AttentionLayout(of, rng) {
    cache.assign(static_cast<size_t>(cache_elements), std::numeric_limits<float>::quiet_NaN());
    const auto dim = static_cast<size_t>(c.dim);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t t = 0; t < seq_lens[r]; ++t) {
        for (int32_t h = 0; h < c.kv_heads; ++h) {
          const auto token = (static_cast<uint32_t>(r) * 100'003U + static_cast<uint32_t>(t)) * 64U;
          const std::vector<float> both = normals(2 * dim, seed + token + static_cast<uint32_t>(h));
          const int64_t at = key_index(r, t, h);
          std::copy_n(both.begin(), dim, cache.begin() + at);
          std::copy_n(both.begin() + c.dim, dim, cache.begin() + at + values_at - keys_at);
        }
      }
    }
    q = normals(static_cast<size_t>(num_toks() * q_stride), seed + 1, c.q_scale);
    sinks = normals(static_cast<size_t>(c.q_heads), seed + 2, 2.0F);
  }
};

class Float32Cuda : public Float32Linears {
 protected:
  struct Result {
    std::vector<float> out;
    std::vector<float> lse;
  };

  Result run_cuda(const PagedAttentionArgs& args) {
    paged_attention(stream(), args);
    return {download_act(args.out),
            download(args.lse.data, static_cast<size_t>(args.lse.shape[0] * args.lse.shape[1]))};
  }
  Result run_cuda(const Float32Attention& batch) {
    ArenaMemory device = memory();
    return run_cuda(batch.args(device));
  }

  void check(const AttentionCase& c) {
    SCOPED_TRACE(c.text());
    arena().reset();
    const Float32Attention batch(c, 3);
    HostMemory host;
    PagedAttentionArgs args = batch.args(host);
    std::vector<std::byte> scratch(paged_attention_scratch_bytes(
        args.kv, c.q_heads, static_cast<int32_t>(c.rows.size()), cpu_device().facts().num_threads));
    args.scratch = make_view(scratch.data(), static_cast<int64_t>(scratch.size()));
    paged_attention(cpu_stream(), args);
    const Result got = run_cuda(batch);
    expect_near(got.out, static_cast<const float*>(args.out.data), "output");
    expect_near(got.lse, args.lse.data, "lse");
  }

  // Every query alone, on the same cache, against the query in its batch.
  void check_queries(const AttentionCase& c) {
    SCOPED_TRACE(c.text());
    arena().reset();
    const Float32Attention batch(c, 7);
    ArenaMemory device = memory();
    const PagedAttentionArgs args = batch.args(device);
    const Result all = run_cuda(args);
    const auto cols = static_cast<size_t>(batch.q_cols());
    const auto heads = static_cast<size_t>(c.q_heads);
    for (size_t r = 0; r < c.rows.size(); ++r) {
      for (int32_t i = 0; i < c.rows[r].queries; ++i) {
        const int32_t tok = batch.query_start_loc[r] + i;
        PagedAttentionArgs one = args;
        one.q.data = static_cast<const float*>(args.q.data) + tok * args.q.stride;
        one.q.shape[0] = 1;
        one.out = poisoned_act(DType::kF32, 1, batch.q_cols());
        one.lse = make_view(poisoned<float>(heads), int64_t{1}, int64_t{c.q_heads});
        one.idx_mapping =
            make_view<const int32_t>(upload(std::vector<int32_t>{batch.idx_mapping[r]}), 1);
        one.query_start_loc = make_view<const int32_t>(upload(std::vector<int32_t>{0, 1}), 2);
        const int32_t len = c.rows[r].len - c.rows[r].queries + i + 1;
        one.seq_lens = make_view<const int32_t>(upload(std::vector<int32_t>{len}), 1);
        one.num_decode_rows = one.num_decode_toks = 0;
        const Result alone = run_cuda(one);
        const auto at = static_cast<size_t>(tok);
        ASSERT_TRUE(std::equal(alone.out.begin(),
                               alone.out.end(),
                               all.out.begin() + static_cast<std::ptrdiff_t>(at * cols)))
            << "output of query " << i << " of row " << r;
        ASSERT_TRUE(std::equal(alone.lse.begin(),
                               alone.lse.end(),
                               all.lse.begin() + static_cast<std::ptrdiff_t>(at * heads)))
            << "lse of query " << i << " of row " << r;
      }
    }
  }

 private:
  // NaN only where the CPU has written nothing.
  void expect_near(const std::vector<float>& got, const float* want, const char* what) {
    for (size_t i = 0; i < got.size(); ++i) {
      if (std::isnan(want[i])) {
        ASSERT_TRUE(std::isnan(got[i])) << what << " " << i << " was written";
        continue;
      }
      const double error = std::abs(got[i] - want[i]) / (1.0 + std::abs(want[i]));
      ASSERT_TRUE(error <= 1e-5) << what << " " << i << ": " << got[i] << " for " << want[i];
      worst_ = std::max(worst_, error);
    }
  }
};

TEST_F(Float32Cuda, LinearsAreNearDouble) {
  for (const int32_t m : {1, 3, 64, 65, 130}) {
    check_linear({.m = m, .n = 256, .k = 512});
    for (const int32_t k : {8, 24, 32, 40, 200, 1000}) {
      check_linear({.m = m, .n = 40, .k = k});
    }
    for (const int32_t n : {1, 7, 63, 64, 65, 2113}) {
      check_linear({.m = m, .n = n, .k = 136});
    }
    for (const LinearEpilogue epilogue : {kStore, kAdd, kSwiGlu}) {
      for (const bool norm : {false, true}) {
        for (const bool bias : {false, true}) {
          check_linear({.m = m,
                        .n = 192,
                        .k = 320,
                        .epilogue = epilogue,
                        .norm = norm,
                        .bias = bias,
                        .y_pad = 5,
                        .x_pad = 8});
        }
      }
    }
  }
  check_linear({.m = 5, .n = 96, .k = 12288});
  check_linear({.m = 2, .n = 49152, .k = 64});
  std::cout << "[ float32  ] linears are off by " << worst_ << " at most, of 1e-5\n";
}

TEST_F(Float32Cuda, LinearsOfEveryNumberOfRowsHaveTheSameBits) {
  std::vector<int32_t> every(512);
  for (int32_t m = 1; m <= 512; ++m) {
    every[static_cast<size_t>(m) - 1] = m;
  }
  check_rows({.m = 512, .n = 72, .k = 584}, every);
  const std::vector<int32_t> some = {1, 2, 5, 8, 16, 17, 63, 64, 65, 128, 200, 511};
  check_rows({.m = 512, .n = 320, .k = 1024, .epilogue = kAdd, .bias = true}, some);
  check_rows({.m = 512, .n = 384, .k = 256, .epilogue = kSwiGlu, .norm = true}, some);
  check_rows({.m = 512, .n = 384, .k = 256, .norm = true, .bias = true}, some);
}

const std::vector<AttentionRow> kMixed = {
    {1, 1}, {1, 64}, {1, 300}, {5, 131}, {0, 9}, {17, 17}, {1, 0}, {40, 256}, {129, 129}, {3, 700}};

TEST_F(Float32Cuda, AttentionIsNearTheCpu) {
  for (const int32_t dim : {8, 16, 64, 80, 96, 128, 256}) {
    check({.q_heads = 4, .kv_heads = 2, .dim = dim, .rows = kMixed, .padding_toks = 3});
  }
  check({.q_heads = 6, .kv_heads = 6, .dim = 64, .rows = kMixed});
  check({.q_heads = 20, .kv_heads = 1, .dim = 64, .rows = kMixed});
  check({.dim = 64, .block_size = 32, .nhd = true, .rows = kMixed});
  check({.dim = 64, .block_size = 128, .apart = true, .num_layers = 3, .rows = kMixed});
  check({.dim = 64, .window = 1, .rows = kMixed});
  check({.dim = 64, .window = 50, .sinks = true, .rows = kMixed});
  check({.dim = 64, .window = 200, .soft_cap = 5.0F, .rows = kMixed});
  check({.dim = 64, .sinks = true, .causal = false, .rows = kMixed});
  check({.dim = 64, .window = 50, .causal = false, .rows = kMixed});
  check({.dim = 64, .num_decode_rows = 3, .rows = kMixed, .spare_cells = 7});
  check({.q_heads = 2, .kv_heads = 1, .dim = 64, .rows = {{1, 8200}, {2, 5000}}});
  check({.dim = 64, .rows = {{1, 90}}, .q_scale = 5.0F});
  std::cout << "[ float32  ] attention is off by " << worst_ << " at most, of 1e-5\n";
}

TEST_F(Float32Cuda, AttentionOfAQueryHasTheSameBitsAloneAndInABatch) {
  check_queries({.dim = 64, .rows = {{5, 131}, {1, 300}, {40, 256}, {17, 17}, {6, 1029}}});
  check_queries({.dim = 128, .window = 50, .rows = {{5, 131}, {1, 300}, {40, 256}}});
  check_queries({.dim = 16, .soft_cap = 5.0F, .sinks = true, .rows = {{5, 131}, {1, 300}}});
}

TEST_F(Float32Cuda, AttentionOverOtherBlocksHasTheSameBits) {
  AttentionCase c{.dim = 64, .rows = {{5, 131}, {1, 300}, {40, 256}, {17, 17}}};
  arena().reset();
  const Result expected = run_cuda(Float32Attention(c, 9));
  for (const int32_t block_size : {16, 64, 128}) {
    for (const bool nhd : {false, true}) {
      for (const bool shuffled : {false, true}) {
        c.block_size = block_size;
        c.nhd = nhd;
        c.shuffled = shuffled;
        SCOPED_TRACE(c.text());
        const Result got = run_cuda(Float32Attention(c, 9));
        EXPECT_TRUE(got.out == expected.out);
        EXPECT_TRUE(got.lse == expected.lse);
      }
    }
  }
}

}  // namespace
}  // namespace warprow::testing
