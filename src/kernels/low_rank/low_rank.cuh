// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/low_rank/low_rank.h"

#include <cstddef>
#include <cstdint>
#include <cuda_runtime.h>

// What kernels read of products of low rank (low_rank.h).
namespace warprow::cuda {

// A block of columns of B's tiles is those of four mma (low_rank_pack.h): number j has columns 8 g + 2 j and 8 g + 2 j + 1 of
// the block for g from 0 to 7, as rows g and g + 8.
constexpr int kLowRankSteps = 4;
static_assert(kLowRankColumns == 16 * kLowRankSteps);
// Blocks of 32 inputs of A's tiles in a warp's share of a chunk (LowRankCut::warps).
constexpr int kLowRankWarpBlocks = kLowRankWarpInputs / 32;

struct LowRankPlace {
  LowRankProduct product;
  Banks banks;
  BankRuns runs;
  LowRankSums sums;

  [[nodiscard]] __device__ const std::byte* bank(int bank) const {
    return banks.base + bank * banks.bank_bytes;
  }
  [[nodiscard]] __device__ int rank(int bank_index, int part) const {
    return __ldg(reinterpret_cast<const int32_t*>(bank(bank_index)) + product.first_rank + part);
  }
  // Runs, ranks and matrices are those that the step's first kernel and earlier copies wrote. They may be read before
  // pdl_wait: no kernel of the step starts before that kernel's end (group_by_bank_cuda.cu).
  [[nodiscard]] __device__ BankRun run(int index, int num_runs) const {
    if (index >= num_runs) {
      return {};
    }
    const BankRun* from = runs.runs + index;
    return {__ldcg(&from->bank), __ldcg(&from->first), __ldcg(&from->count)};
  }
  // The token of a run's column, or -1.
  [[nodiscard]] __device__ int64_t token(const BankRun& run, int column) const {
    return column < run.count ? __ldcg(runs.order + run.first + column) : -1;
  }
  // A token's sums of one chunk and part.
  [[nodiscard]] __device__ int64_t sums_at(int chunk, int64_t tok, int part) const {
    return ((chunk * sums.num_toks + tok) * product.num_parts + part) * banks.max_rank;
  }
  // The first tile of a bank's A or B, of the first ranks and inputs or columns: 32 lanes' operands of one mma.
  [[nodiscard]] __device__ const uint4* a_tiles(int bank_index, int part) const {
    return reinterpret_cast<const uint4*>(bank(bank_index) + product.parts[part].a);
  }
  [[nodiscard]] __device__ const uint4* b_tiles(int bank_index, int part) const {
    return reinterpret_cast<const uint4*>(bank(bank_index) + product.parts[part].b);
  }
};

// sum += the products of a block of 32 inputs. low, high: A's tiles of the first and the second step; x: the lane's eight inputs of
// a token. The order of sums of both kernels that compute the first half.
__device__ __forceinline__ void add_low_rank_block(float (&sum)[4],
                                                   const uint4& low,
                                                   const uint4& high,
                                                   const uint4& x) {
  mma_bf16(sum, {low.x, low.y, low.z, low.w}, x.x, x.y);
  mma_bf16(sum, {high.x, high.y, high.z, high.w}, x.z, x.w);
}

// A term. Its sums are there, unless `shrinks`.
struct LowRankParams {
  LowRankPlace at;
  LowRankCut cut;
  int32_t num_runs;
  bool normed;
  float norm_eps;
  bool shrinks;

  // With tiles: what a token's sums are multiplied by. Four adjacent lanes call it together with the same token, or with -1.
  [[nodiscard]] __device__ __forceinline__ float scale(int64_t tok) const {
    if (!normed) {
      return 1.0F;
    }
    const int parts = (at.product.k + 63) / 64;
    const auto scale_from = [&](const auto* squares) {
      return inverse_rms(tok < 0 ? nullptr : squares + tok * parts,
                         parts,
                         static_cast<int>(threadIdx.x) % 4,
                         static_cast<float>(at.product.k),
                         norm_eps);
    };
    return at.sums.num_toks <= kMaxQuarteredRows
               ? scale_from(reinterpret_cast<const float4*>(at.sums.squares))
               : scale_from(at.sums.squares);
  }
};

inline LowRankParams low_rank_params(const LowRankTerm& term) {
  return {{term.product, term.banks, term.runs, term.sums},
          low_rank_cut(term.banks.dtype, term.product.k),
          max_bank_runs(term.sums.num_toks, term.banks.num_banks),
          term.normed,
          term.norm_eps,
          term.shrinks};
}

}  // namespace warprow::cuda
