// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/dtype.h"
#include "base/math.h"
#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/linear/linear.h"
#include "kernels/op.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace warprow {

// Products of low rank that some tokens of a step add to a product with a matrix: y[t] += B (A x[t]), where A and B are
// those of the token's bank. A bank is a range of memory with the pairs (A, B) of all products of a model.

inline constexpr int32_t kMaxBanks = 64;
inline constexpr int32_t kMaxLowRankParts = 4;
// Where matrices are tiles (low_rank_pack.h): ranks are padded to a multiple of kRankTile, and a block of B has kLowRankColumns.
inline constexpr int32_t kRankTile = 16;
inline constexpr int32_t kLowRankColumns = 64;

// Tokens of one bank.
struct BankRun {
  int32_t bank = -1;  // -1: tokens without a bank
  int32_t first = 0;  // in BankRuns::order
  int32_t count = 0;  // at most kRunToks; 0 behind the last run
};
inline constexpr int32_t kRunToks = 8;

// A step's tokens in runs of equal banks.
struct BankRuns {
  int32_t* token_banks = nullptr;  // dev i32 [T]
  int32_t* order = nullptr;        // dev i32 [T]  tokens, those of a bank side by side
  BankRun* runs = nullptr;         // dev [max_bank_runs(T, banks)]
};
constexpr int32_t max_bank_runs(int64_t num_toks, int32_t num_banks) {
  return static_cast<int32_t>(
      std::min<int64_t>(num_toks, ceil_div<int64_t>(num_toks, kRunToks) + num_banks + 1));
}

// Sorts a step's tokens by bank.
//
// Formula: token t of batch_idx b has bank row_banks[idx_mapping[b]]; padding tokens have none.
// Shapes: idx_mapping [num_rows], -1 for padding; query_start_loc [num_rows + 1]; row_banks [max_num_seqs].
// Mapping (CUDA): one CTA. (CPU): one thread.
// Bytes moved: about 12 * num_toks.
// Numerics: integers. The order within a bank is undefined on CUDA.
// Preconditions: num_banks <= kMaxBanks.
// Origin: own.
struct GroupByBankArgs {
  const int32_t* idx_mapping = nullptr;
  const int32_t* query_start_loc = nullptr;
  const int32_t* row_banks = nullptr;
  int32_t num_rows = 0;
  int32_t num_toks = 0;  // with padding
  int32_t num_banks = 0;
  BankRuns runs;
};
WR_OP(group_by_bank, GroupByBankArgs);

// Where a bank's matrices of one product lie, and the columns that they add to.
struct LowRankPart {
  int64_t a = 0;  // bytes from the bank's begin
  int64_t b = 0;
  int32_t n = 0;  // outputs
  int32_t y_col = 0;
};
struct LowRankProduct {
  int32_t k = 0;  // inputs
  int32_t num_parts = 0;
  int32_t first_rank =
      0;  // a bank begins with the ranks of all its pairs; that of this product's first part
  LowRankPart parts[kMaxLowRankParts];
};
// Memory of all banks. float32: A [rank, k], B transposed [rank, n]. bf16: tiles for tensor cores (low_rank_pack.h).
struct Banks {
  const std::byte* base = nullptr;  // dev
  int64_t bank_bytes = 0;
  int32_t num_banks = 0;
  int32_t max_rank = 0;  // a multiple of kRankTile
  DType dtype = DType::kF32;
};

// A product's inputs are cut into chunks, whose sums are added in order. A function of the inputs alone.
struct LowRankCut {
  int32_t num_chunks = 1;
  int32_t warps = 1;  // of kLowRankWarpInputs each, in a chunk; at most kMostLowRankWarps
};
inline constexpr int32_t kLowRankWarpInputs = 64;
inline constexpr int32_t kMostLowRankWarps = 16;
constexpr LowRankCut low_rank_cut(DType dtype, int32_t k) {
  if (dtype == DType::kF32) {
    return {};
  }
  const int32_t chunks = ceil_div(k, kMostLowRankWarps * kLowRankWarpInputs);
  return {chunks, ceil_div(k, kLowRankWarpInputs * chunks)};
}

// The results of low_rank_shrink, for low_rank_expand.
struct LowRankSums {
  float* sums = nullptr;  // dev f32 [num_chunks, T, num_parts, max_rank]
  // Sums of squares of rows that are to be normalised: dev f32 [T], or with tiles HalfNorm::squares (linear.h).
  float* squares = nullptr;
  int64_t num_toks = 0;  // T
};

// The first half: sums = A h, h = x, or if norm has a weight x * norm.weight, whose division by the root of the mean square
// is left to the second half. With tiles this operation begins the norm if no other has.
//
// Shapes: x [T, k]. Rows of sums past a bank's rank and tokens without a bank stay as they are.
// Mapping (CUDA, tiles): a CTA takes a run, a chunk of inputs and a part; a warp 64 of the inputs, as mma with ranks as rows
//   and tokens as columns. (float32): a warp a token and a rank. (CPU): tokens and ranks in parallel.
// Bytes moved: each used bank's A once for every kRunToks of its tokens; x once for every part.
// Numerics: float32 sums of bf16 products (float32: of float32 ones), in an order that is a function of k alone. A token's
//   result depends on that token and its bank alone.
// Preconditions: as low_rank_expand; tiles: k a multiple of 8, rows of x aligned to 16 bytes.
// Origin: own; the two halves with tokens by adapter are Punica's (Chen et al., arXiv 2310.18547).
struct LowRankShrinkArgs {
  ConstActView x;
  HalfNorm
      norm;  // of x, or without a weight none. float32: only its weight is used; tiles: its squares are sums.squares
  LowRankProduct product;
  Banks banks;
  BankRuns runs;
  LowRankSums sums;
};
WR_OP(low_rank_shrink, LowRankShrinkArgs);

// What is added to a product once low_rank_shrink has run: sum over r of B[j, r] * s[t, r] to column y_col + j, where s are
// the sums of all chunks, with `normed` times 1 / sqrt(squares / k + norm_eps).
//
// shrinks: low_rank_shrink has not run; the product does its work too, with the same bits (linear.h, LowRankHalves::kBoth). All
//   bytes of the sums then begin as kUnsetSumByte: a NaN that no arithmetic yields, so that another value is a sum that has
//   arrived.
inline constexpr int kUnsetSumByte = 0xff;
struct LowRankTerm {
  LowRankProduct product;
  Banks banks;
  BankRuns runs;
  LowRankSums sums;
  bool normed = false;
  float norm_eps = 0.0F;
  bool shrinks = false;
};

// The second half: y += the term. Some products add it themselves (linear.h, LowRankHalves), with the same bits.
//
// With `activated`: y is gate and up, two parts of n columns, of float32; activated[t, j] = silu(gate) * up of the sums, for
//   all tokens. y and activated then hold tokens first_tok to first_tok + their rows; else first_tok is 0.
// Mapping (CUDA, tiles): a warp takes a run and 64 columns. (float32): a thread a column. (CPU): tokens and columns in
//   parallel.
// Bytes moved: each used bank's B once for every kRunToks of its tokens; y twice.
// Numerics: tiles: s rounded to bf16 as PEFT's A x is, float32 sums over ranks, one rounding of y. silu as
//   linear/finish.cuh.
// Preconditions: low_rank_shrink of the same product ran before; tiles: n, y_col and row strides are multiples of 8.
// Origin: own.
struct LowRankExpandArgs {
  LowRankTerm term;
  ActView y;
  ActView activated;  // or empty
  int64_t first_tok = 0;
};
WR_OP(low_rank_expand, LowRankExpandArgs);

}  // namespace warprow
