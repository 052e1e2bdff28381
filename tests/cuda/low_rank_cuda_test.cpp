// SPDX-License-Identifier: Apache-2.0
// Products of low rank on CUDA against their reference, and rows of a batch against the same rows alone.
#include "kernels/linear/half_norm.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/linear_plan.h"
#include "kernels/low_rank/low_rank.h"
#include "tests/cuda/cuda_test.h"
#include "tests/support/low_rank_case.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;
using testing::low_rank_cases;
using testing::LowRankCase;
using testing::LowRankRow;
using testing::Tolerance;

// In bf16, x times the norm's weight and the sums between the halves are rounded: both have about 64 values of size 1.
constexpr Tolerance kTiles{0.0, 0.06};
constexpr Tolerance kTilesStored{1.02 / 256, 0.06};
constexpr Tolerance kGated{0.02, 0.15};

class LowRankCuda : public CudaTest {
 protected:
  void expect_agrees(const LowRankCase& c, Tolerance tolerance) {
    arena().reset();
    ArenaMemory mem = memory();
    const LowRankCase::Args args = c.args(mem);
    args.run(stream());
    stream().synchronize();
    expect_elements(args.result(), c.reference(), tolerance);
  }

  void expect_same_alone(const LowRankCase& c) {
    arena().reset();
    ArenaMemory mem = memory();
    const LowRankCase::Args all = c.args(mem);
    all.run(stream());
    const std::vector<float> together = download_act(all.result());
    for (size_t row = 0; row < c.rows.size(); ++row) {
      LowRankCase one = c;
      one.rows = {c.rows[row]};
      one.num_padding_toks = 0;
      const auto at = static_cast<int32_t>(row);
      const LowRankCase::Args args =
          one.args(mem, c.slice(c.x(), at, c.k), c.slice(c.y(), at, c.width()));
      args.run(stream());
      ASSERT_EQ(download_act(args.result()), c.slice(together, at, all.result().shape[1]))
          << "row " << row;
    }
  }
};

TEST_F(LowRankCuda, Float32) {
  for (const LowRankCase& c : low_rank_cases(DType::kF32)) {
    SCOPED_TRACE(c.k);
    expect_agrees(c, {5e-5, 5e-5});
    expect_same_alone(c);
  }
}

TEST_F(LowRankCuda, Tiles) {
  for (LowRankCase c : low_rank_cases(DType::kBF16)) {
    SCOPED_TRACE(c.k);
    expect_agrees(c, c.gated ? kGated : kTiles);
    expect_same_alone(c);
    if (!c.gated) {
      c.y_type = DType::kBF16;
      expect_agrees(c, kTilesStored);
      expect_same_alone(c);
    }
  }
}

// A linear layer's product and what adapters add to it.
struct TermCase {
  LowRankCase low;
  LinearEpilogue epilogue = LinearEpilogue::kStore;
  DType y = DType::kBF16;
  bool bias = false;
  bool next_norm = false;
};

class LinearTermCuda : public LowRankCuda {
 protected:
  struct Result {
    std::vector<float> y;
    std::vector<float> next_rows;
    std::vector<float> next_squares;
  };

  static LinearShape shape_of(const TermCase& c) {
    return {c.low.width(), c.low.k, c.y, c.epilogue, c.bias, true, PackedKind::kBF16};
  }

  // halves: what the product does; the others are operations in turn.
  Result run(const TermCase& c, LowRankHalves halves) {
    arena().reset();
    ArenaMemory mem = memory();
    const LowRankCase& low = c.low;
    const int64_t toks = low.num_toks();
    const int32_t n = low.width();
    LowRankCase::Args of_low = low.args(mem);
    HalfNorm& half = of_low.shrink.norm;
    LinearArgs args;
    args.x = of_low.shrink.x;
    if (low.normed) {
      cuda::begin_norm(stream(), of_low.shrink.x.f32(), half);
      half.begun = true;
      args.norm_weight = half.weight;
      args.norm_eps = LowRankCase::kEps;
      args.half_norm = &half;
      args.normed = poisoned_act(DType::kBF16, toks, low.k);
    }
    group_by_bank(stream(), of_low.group);
    LowRankTerm& term = of_low.expand.term;
    term.shrinks = halves == LowRankHalves::kBoth;
    if (term.shrinks) {
      const auto chunks = low_rank_cut(low.dtype, low.k).num_chunks;
      const int64_t count = int64_t{chunks} * toks * low.num_parts() * low.max_rank;
      stream().fill(term.sums.sums, kUnsetSumByte, static_cast<size_t>(count) * sizeof(float));
    } else {
      low_rank_shrink(stream(), of_low.shrink);
    }
    const auto values = [&](int64_t count, uint32_t seed, float size) {
      return testing::normals(static_cast<size_t>(count), seed, size);
    };
    LinearSegment& segment = args.segments[0];
    segment.w.kind = PackedKind::kBF16;
    segment.w.n = n;
    segment.w.k = low.k;
    segment.w.data = static_cast<const std::byte*>(
        mem.put_as(DType::kBF16, values(int64_t{n} * low.k, 31, 0.05F)));
    segment.bias = c.bias ? mem.put(values(n, 32, 1.0F)) : nullptr;
    args.num_segments = 1;
    args.epilogue = c.epilogue;
    args.batch_invariant = true;
    args.scratch = poisoned<std::byte>(cuda::linear_scratch_bytes(toks, low.k));
    const bool gate = c.epilogue == LinearEpilogue::kSwiGlu;
    const int64_t outputs = gate ? n / 2 : n;
    args.y = ActView(c.y, mem.put_as(c.y, values(toks * outputs, 33, 1.0F)), toks, outputs);
    args.product = poisoned_act(DType::kF32, toks, n);
    HalfNorm next;
    if (c.next_norm) {
      next.weight = make_view<const float>(mem.put(values(n, 34, 1.0F)), n);
      next.rows = poisoned_act(DType::kBF16, toks, n);
      next.squares = poisoned<float>(static_cast<size_t>(half_norm_squares(toks, n)));
      args.next_norm = &next;
    }

    if (halves != LowRankHalves::kNone) {
      args.term = &term;
      linear(stream(), args);
    } else if (gate) {
      LinearArgs product = args;
      product.y = args.product;
      product.epilogue = LinearEpilogue::kStore;
      linear(stream(), product);
      low_rank_expand(stream(), {term, args.product, args.y, 0});
    } else if (c.epilogue == LinearEpilogue::kAdd) {
      low_rank_expand(stream(), {term, args.y, {}, 0});
      linear(stream(), args);
    } else {
      linear(stream(), args);
      low_rank_expand(stream(), {term, args.y, {}, 0});
    }
    Result out;
    out.y = download_act(args.y);
    if (c.next_norm) {
      out.next_rows = download_act(next.rows);
      out.next_squares = download_act(ActView(DType::kF32, next.squares, toks, n / 64));
    }
    return out;
  }

  void expect_same(const TermCase& c) {
    const Result want = run(c, LowRankHalves::kNone);
    std::vector<LowRankHalves> all = {LowRankHalves::kSecond};
    const int32_t toks = c.low.num_toks();
    const DeviceFacts& device = gpu().facts();
    if (cuda::sm90_gemm_is_resident(cuda::sm90_gemm_plan(shape_of(c), toks, device, true),
                                    toks,
                                    c.low.width(),
                                    device.num_sms)) {
      all.push_back(LowRankHalves::kBoth);
      ++num_both_;
    }
    for (const LowRankHalves halves : all) {
      const Result got = run(c, halves);
      ASSERT_EQ(got.y, want.y);
      ASSERT_EQ(got.next_rows, want.next_rows);
      ASSERT_EQ(got.next_squares, want.next_squares);
    }
  }

  int num_both_ = 0;  // cases in which the product did both halves
};

// Rows of many banks, of one and without any, so that runs are short, full and many.
std::vector<std::vector<LowRankRow>> term_rows() {
  std::vector<LowRankRow> spread;
  for (int32_t row = 0; row < 32; ++row) {
    spread.push_back({1, row % 8});
  }
  std::vector<LowRankRow> alone;
  for (int32_t row = 0; row < 31; ++row) {
    alone.push_back({1, row});
  }
  return {{{1, 0}},
          {{3, 1}, {1, -1}},
          {{4, 1}, {1, 0}, {1, -1}},
          {{8, 1}},
          {{9, 0}},
          {{1, 3}, {7, -1}, {3, 2}, {6, 0}},
          {{16, 1}, {1, -1}},
          spread,
          alone};
}

TEST_F(LinearTermCuda, ProductsHaveTheBitsOfOperationsInTurn) {
  if (gpu().facts().compute_capability != 90) {
    GTEST_SKIP() << "the kernels are Hopper's";
  }
  for (const std::vector<LowRankRow>& rows : term_rows()) {
    for (const std::vector<int32_t>& ranks :
         std::vector<std::vector<int32_t>>{{16}, {0, 8, 16, 48, 64}}) {
      LowRankCase low{
          .dtype = DType::kBF16, .k = 1024, .ranks = ranks, .max_rank = 64, .rows = rows};
      low.num_banks = 1;
      for (const LowRankRow& row : rows) {
        low.num_banks = std::max(low.num_banks, row.bank + 1);
      }
      SCOPED_TRACE(::testing::Message() << low.num_toks() << " rows, " << ranks.size() << " ranks");
      low.widths = {1024, 128, 128};
      for (const bool bias : {false, true}) {
        expect_same({low, LinearEpilogue::kStore, DType::kBF16, bias});
      }
      expect_same({low, LinearEpilogue::kStore, DType::kF32});
      low.normed = true;
      expect_same({low, LinearEpilogue::kStore, DType::kBF16});
      low.widths = {4096, 1024, 1024};
      expect_same({low, LinearEpilogue::kStore, DType::kBF16});
      // Tiles of 96 outputs of gate and up, which end within a block of 64, and of 32.
      low.widths = {12288, 12288};
      expect_same({low, LinearEpilogue::kSwiGlu, DType::kBF16});
      low.widths = {3072, 3072};
      expect_same({low, LinearEpilogue::kSwiGlu, DType::kBF16});
      if (rows.size() == 32 && ranks.size() > 1) {  // takes long
        low.k = 4096;
        low.widths = {12288, 12288};
        const int before = num_both_;
        expect_same({low, LinearEpilogue::kSwiGlu, DType::kBF16});
        EXPECT_GT(num_both_, before) << "gate and up of one wave";
      }
      low.normed = false;
      for (const auto& [k, n] : {std::pair{4096, 4096}, {1024, 1024}, {3072, 1024}, {2560, 320}}) {
        low.k = k;
        low.widths = {n};
        const int before = num_both_;
        expect_same({low, LinearEpilogue::kAdd, DType::kF32, false, true});
        EXPECT_GT(num_both_, before) << k << " inputs, " << n << " outputs";
        expect_same({low, LinearEpilogue::kAdd, DType::kF32, true, false});
      }
    }
  }
}

}  // namespace
}  // namespace warprow
