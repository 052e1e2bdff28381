// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/act_and_mul.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/half_norm.h"
#include "kernels/low_rank/low_rank.cuh"

// Formula, shapes, numerics, preconditions: low_rank.h. Layout of tiles: low_rank_pack.h.
// Mapping: a run of up to 8 tokens is the n dimension of an mma, a tile of 16 ranks or columns its m dimension.
// Numerics: of a chunk's 64 inputs a warp adds four mma in order; the CTA then adds its warps in order, and low_rank_expand
//   the chunks in order.
namespace warprow::cuda {
namespace {

// ---- tiles, first half

struct ShrinkParams {
  LowRankPlace at;
  const Bf16* x;
  int64_t x_stride;
  int32_t num_runs;
  int32_t runs_of_cta;
};

// A warp's part of a tile of A: [block][step].
using ATiles = uint4[kLowRankWarpBlocks][2];

__device__ __forceinline__ void load_tile(
    const uint4* tiles, int tile, int blocks, int first_block, ATiles& a) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int block = 0; block < kLowRankWarpBlocks; ++block) {
    if (first_block + block < blocks) {
      const int64_t step = (int64_t{tile} * blocks + first_block + block) * 2;
      a[block][0] = __ldg(tiles + step * 32 + lane);
      a[block][1] = __ldg(tiles + (step + 1) * 32 + lane);
    }
  }
}

__global__ void __launch_bounds__(kMostLowRankWarps * 32, 2) shrink_tiles(ShrinkParams p) {
  __shared__ float partial[kMostLowRankWarps][kRunToks][kRankTile];
  const LowRankPlace& at = p.at;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int group = lane / 4;
  const int chunk = static_cast<int>(blockIdx.y);
  const int part = static_cast<int>(blockIdx.z);
  const int k = at.product.k;
  const int blocks = (k + 31) / 32;
  const int first_block = (chunk * warps + warp) * kLowRankWarpBlocks;
  const int first_run = static_cast<int>(blockIdx.x) * p.runs_of_cta;
  pdl_release();
  for (int i = 0; i < p.runs_of_cta; ++i) {
    const BankRun run = at.run(first_run + i, p.num_runs);
    ATiles a = {};
    int rank = 0;
    int64_t tok = -1;
    // The token whose sums this thread adds first.
    const int64_t tok_of_sums = at.token(run, static_cast<int>(threadIdx.x) / kRankTile);
    const uint4* tiles = at.a_tiles(max(run.bank, 0), part);
    if (run.bank >= 0) {
      rank = at.rank(run.bank, part);
      tok = at.token(run, group);
      if (rank > 0) {
        load_tile(tiles, 0, blocks, first_block, a);
      }
    }
    if (i == 0) {
      pdl_wait();
    }
    if (run.count == 0) {
      return;
    }
    if (run.bank < 0) {
      continue;
    }
    // Eight inputs of a token are the second operands of two mma.
    uint4 x[kLowRankWarpBlocks] = {};
#pragma unroll
    for (int block = 0; block < kLowRankWarpBlocks; ++block) {
      const int input = (first_block + block) * 32 + lane % 4 * 8;
      if (tok >= 0 && input < k) {
        x[block] = *reinterpret_cast<const uint4*>(p.x + tok * p.x_stride + input);
      }
    }
    for (int tile = 0; tile < rank / kRankTile; ++tile) {
      if (tile > 0) {
        load_tile(tiles, tile, blocks, first_block, a);
      }
      float sum[4] = {};
#pragma unroll
      for (int block = 0; block < kLowRankWarpBlocks; ++block) {
        add_low_rank_block(sum, a[block][0], a[block][1], x[block]);
      }
      const int column = lane % 4 * 2;
      partial[warp][column][group] = sum[0];
      partial[warp][column + 1][group] = sum[1];
      partial[warp][column][group + 8] = sum[2];
      partial[warp][column + 1][group + 8] = sum[3];
      __syncthreads();
      for (int j = static_cast<int>(threadIdx.x); j < kRunToks * kRankTile;
           j += static_cast<int>(blockDim.x)) {
        const int n = j / kRankTile;
        const int r = j % kRankTile;
        if (n < run.count) {
          const int64_t to = j == static_cast<int>(threadIdx.x) ? tok_of_sums : at.token(run, n);
          float total = partial[0][n][r];
#pragma unroll 4
          for (int w = 1; w < warps; ++w) {
            total = __fadd_rn(total, partial[w][n][r]);
          }
          at.sums.sums[at.sums_at(chunk, to, part) + tile * kRankTile + r] = total;
        }
      }
      __syncthreads();
    }
  }
}

// ---- tiles, second half

constexpr int kExpandWarps = 4;
constexpr int kColumnBlock = kLowRankColumns;
constexpr int kSteps = kLowRankSteps;

template <typename Y>
struct ExpandParams {
  LowRankParams term;
  Y* y;
  int64_t y_stride;
  Bf16* activated;  // or null
  int64_t activated_stride;
  int64_t first_tok;
  int64_t end_tok;
};

// Where a part's tiles of one block of columns lie.
template <typename Y>
__device__ __forceinline__ const uint4* tiles_of(const ExpandParams<Y>& p,
                                                 const BankRun& run,
                                                 int part,
                                                 int block) {
  return p.term.at.b_tiles(run.bank, part) + block * kSteps * 32 +
         static_cast<int>(threadIdx.x) % 32;
}

using BTiles = uint4[kSteps];

__device__ __forceinline__ void load_tile(const uint4* from, BTiles& b) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    b[j] = __ldg(from + j * 32);
  }
}

// sums[j] += the products of 16 columns each, for this lane's two tokens. b: the first tile of ranks.
template <int kChunks, typename Y>
__device__ __forceinline__ void add_part(const ExpandParams<Y>& p,
                                         const uint4* tiles,
                                         int part,
                                         int rank,
                                         int64_t tok,
                                         float scale,
                                         BTiles& b,
                                         float (&sums)[kSteps][4]) {
  const LowRankPlace& at = p.term.at;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int blocks = (at.product.parts[part].n + kColumnBlock - 1) / kColumnBlock;
  const int64_t stride = at.sums_at(1, 0, 0);
  const float* from = at.sums.sums + at.sums_at(0, max(tok, int64_t{0}), part) + lane % 4 * 2;
  for (int tile = 0; tile < rank / kRankTile; ++tile, from += kRankTile) {
    if (tile > 0) {
      load_tile(tiles + int64_t{tile} * blocks * kSteps * 32, b);
    }
    float s[4] = {};
    for (int first = 0; first < p.term.cut.num_chunks; first += kChunks) {
      float2 low[kChunks];
      float2 high[kChunks];
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        const bool there = tok >= 0 && first + i < p.term.cut.num_chunks;
        const float* of = from + (first + i) * stride;
        low[i] = there ? *reinterpret_cast<const float2*>(of) : float2{};
        high[i] = there ? *reinterpret_cast<const float2*>(of + 8) : float2{};
      }
#pragma unroll
      for (int i = 0; i < kChunks; ++i) {
        s[0] = __fadd_rn(s[0], low[i].x);
        s[1] = __fadd_rn(s[1], low[i].y);
        s[2] = __fadd_rn(s[2], high[i].x);
        s[3] = __fadd_rn(s[3], high[i].y);
      }
    }
    const uint32_t low = pack_bf16(__fmul_rn(s[0], scale), __fmul_rn(s[1], scale));
    const uint32_t high = pack_bf16(__fmul_rn(s[2], scale), __fmul_rn(s[3], scale));
#pragma unroll
    for (int j = 0; j < kSteps; ++j) {
      mma_bf16(sums[j], {b[j].x, b[j].y, b[j].z, b[j].w}, low, high);
    }
  }
}

// The eight adjacent columns that this lane has of its first or second token.
__device__ __forceinline__ void columns_of(const float (&sums)[kSteps][4],
                                           int second,
                                           float (&v)[kVec]) {
#pragma unroll
  for (int j = 0; j < kSteps; ++j) {
    v[2 * j] = second != 0 ? sums[j][1] : sums[j][0];
    v[2 * j + 1] = second != 0 ? sums[j][3] : sums[j][2];
  }
}

template <typename Y, bool kGated>
__global__ void __launch_bounds__(kExpandWarps * 32) expand_tiles(ExpandParams<Y> p) {
  const LowRankPlace& at = p.term.at;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  int block = static_cast<int>(blockIdx.x);
  int part = 0;
  if constexpr (!kGated) {
    while (block >= (at.product.parts[part].n + kColumnBlock - 1) / kColumnBlock) {
      block -= (at.product.parts[part].n + kColumnBlock - 1) / kColumnBlock;
      ++part;
    }
  }
  constexpr int kParts = kGated ? 2 : 1;
  constexpr int kChunks = kGated ? 4 : 8;  // for registers
  const int run_index =
      static_cast<int>(blockIdx.y) * kExpandWarps + static_cast<int>(threadIdx.x) / 32;
  const BankRun run = at.run(run_index, p.term.num_runs);
  pdl_release();
  int64_t tok = -1;
  int ranks[kParts] = {};
  const uint4* tiles[kParts] = {};
  BTiles b[kParts] = {};
  if (run.bank >= 0) {
    tok = at.token(run, lane / 4);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      ranks[i] = at.rank(run.bank, part + i);
      tiles[i] = tiles_of(p, run, part + i, block);
      if (ranks[i] > 0) {
        load_tile(tiles[i], b[i]);
      }
    }
  }
  // This lane's columns of two tokens.
  const int column = block * kColumnBlock + lane / 4 * kVec;
  int64_t toks[2];
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    toks[second] = at.token(run, lane % 4 * 2 + second);
    if (toks[second] < p.first_tok || toks[second] >= p.end_tok ||
        column >= at.product.parts[part].n) {
      toks[second] = -1;
    }
  }
  pdl_wait();
  if (run.count == 0 || (!kGated && run.bank < 0)) {
    return;
  }
  float old[2][kParts][kVec];
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    if (toks[second] >= 0) {
      const Y* y = p.y + (toks[second] - p.first_tok) * p.y_stride + column;
#pragma unroll
      for (int i = 0; i < kParts; ++i) {
        load8(y + at.product.parts[part + i].y_col, old[second][i]);
      }
    }
  }
  float sums[kParts][kSteps][4] = {};
  if (run.bank >= 0) {
    const float scale = p.term.scale(tok);
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      add_part<kChunks>(p, tiles[i], part + i, ranks[i], tok, scale, b[i], sums[i]);
    }
  }
#pragma unroll
  for (int second = 0; second < 2; ++second) {
    if (toks[second] < 0) {
      continue;
    }
    const int64_t row = toks[second] - p.first_tok;
    float v[kParts][kVec];
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      columns_of(sums[i], second, v[i]);
      // A token without a bank keeps its product, so that the gate has the bits of the GEMMs' own epilogue.
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        v[i][j] = run.bank < 0 ? old[second][i][j] : __fadd_rn(old[second][i][j], v[i][j]);
      }
    }
    if constexpr (kGated) {
#pragma unroll
      for (int j = 0; j < kVec; ++j) {
        v[0][j] = __fadd_rn(gated(v[0][j], v[1][j]), 0.0F);
      }
      store8(p.activated + row * p.activated_stride + column, v[0]);
    } else {
      store8(p.y + row * p.y_stride + at.product.parts[part].y_col + column, v[0]);
    }
  }
}

template <typename Y, bool kGated>
void launch_expand(Stream& stream, const LowRankExpandArgs& args) {
  ExpandParams<Y> p;
  p.term = low_rank_params(args.term);
  p.y = static_cast<Y*>(args.y.data);
  p.y_stride = args.y.stride;
  p.activated = static_cast<Bf16*>(args.activated.data);
  p.activated_stride = args.activated.stride;
  p.first_tok = args.first_tok;
  p.end_tok = args.first_tok + args.y.shape[0];
  const LowRankProduct& product = args.term.product;
  int32_t blocks = 0;
  for (int32_t part = 0; part < (kGated ? 1 : product.num_parts); ++part) {
    blocks += ceil_div(product.parts[part].n, kColumnBlock);
  }
  launch(stream,
         "low_rank_expand",
         {dim3(static_cast<unsigned>(blocks),
               static_cast<unsigned>(ceil_div(p.term.num_runs, kExpandWarps))),
          kExpandWarps * 32},
         expand_tiles<Y, kGated>,
         p);
}

LowRankPlace place_of(const LowRankShrinkArgs& args) {
  return {args.product, args.banks, args.runs, args.sums};
}

// x: bf16
void launch_shrink(Stream& stream, const LowRankShrinkArgs& args, const ConstActView& x) {
  const LowRankCut cut = low_rank_cut(args.banks.dtype, args.product.k);
  ShrinkParams p;
  p.at = place_of(args);
  p.x = static_cast<const Bf16*>(x.data);
  p.x_stride = x.stride;
  p.num_runs = max_bank_runs(args.sums.num_toks, args.banks.num_banks);
  p.runs_of_cta = p.num_runs > 64 ? 4 : 1;
  launch(stream,
         "low_rank_shrink",
         {dim3(static_cast<unsigned>(ceil_div(p.num_runs, p.runs_of_cta)),
               static_cast<unsigned>(cut.num_chunks),
               static_cast<unsigned>(args.product.num_parts)),
          static_cast<unsigned>(cut.warps * 32)},
         shrink_tiles,
         p);
}

// ---- float32

constexpr int kPlainThreads = 128;

// A warp takes a rank; the CTA a token and a part.
__global__ void __launch_bounds__(kPlainThreads) shrink_plain(LowRankPlace at,
                                                              View<const float, 2> x,
                                                              const float* weight) {
  pdl_wait();
  pdl_release();
  const int64_t tok = blockIdx.x;
  const int part = static_cast<int>(blockIdx.y);
  const int bank = at.runs.token_banks[tok];
  if (bank < 0) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int rank = at.rank(bank, part);
  const auto* a = reinterpret_cast<const float*>(at.bank(bank) + at.product.parts[part].a);
  const float* row = x.row(tok);
  const int k = at.product.k;
  // Sum number `rank`, behind those of the ranks, is that of the squares.
  for (int r = static_cast<int>(threadIdx.x) / 32; r <= rank; r += kPlainThreads / 32) {
    float sum = 0.0F;
    for (int i = lane; i < k; i += 32) {
      const float v = weight == nullptr ? row[i] : row[i] * weight[i];
      sum = r < rank ? fmaf(a[int64_t{r} * k + i], v, sum) : fmaf(row[i], row[i], sum);
    }
    sum = sum_of_lanes(sum);
    if (lane == 0 && r < rank) {
      at.sums.sums[at.sums_at(0, tok, part) + r] = sum;
    } else if (lane == 0 && part == 0) {
      at.sums.squares[tok] = sum;
    }
  }
}

__global__ void __launch_bounds__(kPlainThreads) expand_plain(ExpandParams<float> p, int32_t part) {
  pdl_wait();
  pdl_release();
  const LowRankPlace& at = p.term.at;
  const int64_t tok = p.first_tok + blockIdx.y;
  const int column = static_cast<int>(blockIdx.x * kPlainThreads + threadIdx.x);
  const int bank = at.runs.token_banks[tok];
  const int n = at.product.parts[part].n;
  if (bank < 0 || column >= n) {
    return;
  }
  const int rank = at.rank(bank, part);
  const auto* b = reinterpret_cast<const float*>(at.bank(bank) + at.product.parts[part].b);
  const float* s = at.sums.sums + at.sums_at(0, tok, part);
  const float scale =
      p.term.normed
          ? rsqrtf(at.sums.squares[tok] / static_cast<float>(at.product.k) + p.term.norm_eps)
          : 1.0F;
  float sum = 0.0F;
  for (int r = 0; r < rank; ++r) {
    sum = fmaf(s[r] * scale, b[int64_t{r} * n + column], sum);
  }
  p.y[blockIdx.y * p.y_stride + at.product.parts[part].y_col + column] += sum;
}

void expand_float32(Stream& stream, const LowRankExpandArgs& args) {
  ExpandParams<float> p = {};
  p.term = low_rank_params(args.term);
  p.y = args.y.f32().data;
  p.y_stride = args.y.stride;
  p.first_tok = args.first_tok;
  const LowRankProduct& product = args.term.product;
  for (int32_t part = 0; part < product.num_parts; ++part) {
    const auto blocks = static_cast<unsigned>(ceil_div(product.parts[part].n, kPlainThreads));
    launch(stream,
           "low_rank_expand",
           {dim3(blocks, static_cast<unsigned>(args.y.shape[0])), kPlainThreads},
           expand_plain,
           p,
           part);
  }
  if (!args.activated.empty()) {
    cuda::silu_and_mul(stream, {args.y, args.activated});
  }
}

}  // namespace

void low_rank_shrink(Stream& stream, const LowRankShrinkArgs& args) {
  WR_CHECK_EQ(args.x.shape[1], args.product.k);
  if (args.x.shape[0] == 0) {
    return;
  }
  if (args.banks.dtype == DType::kF32) {
    launch(stream,
           "low_rank_shrink",
           {dim3(static_cast<unsigned>(args.x.shape[0]),
                 static_cast<unsigned>(args.product.num_parts)),
            kPlainThreads},
           shrink_plain,
           place_of(args),
           args.x.f32(),
           args.norm.weight.data);
    return;
  }
  const bool normed = !args.norm.weight.empty();
  if (normed && !args.norm.begun) {
    begin_norm(stream, args.x.f32(), args.norm);
  }
  const ConstActView x = normed ? ConstActView(args.norm.rows) : args.x;
  WR_CHECK_EQ(args.product.k % kVec, 0);
  WR_CHECK(x.dtype == DType::kBF16 && rows_fit_vec(x.data, x.stride, dtype_bytes(x.dtype)));
  launch_shrink(stream, args, x);
}

void low_rank_expand(Stream& stream, const LowRankExpandArgs& args) {
  if (args.y.shape[0] == 0) {
    return;
  }
  if (args.term.banks.dtype == DType::kF32) {
    expand_float32(stream, args);
    return;
  }
  WR_CHECK(rows_fit_vec(args.y.data, args.y.stride, dtype_bytes(args.y.dtype)));
  if (!args.activated.empty()) {
    WR_CHECK_EQ(args.term.product.num_parts, 2);
    WR_CHECK(args.y.dtype == DType::kF32 && args.activated.dtype == DType::kBF16);
    launch_expand<float, true>(stream, args);
  } else if (args.y.dtype == DType::kF32) {
    launch_expand<float, false>(stream, args);
  } else {
    launch_expand<Bf16, false>(stream, args);
  }
}

}  // namespace warprow::cuda
