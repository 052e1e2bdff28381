// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm90_block.cuh"
#include "kernels/low_rank/low_rank.cuh"

#include <cstdint>

// What sm90_bf16_gemm_small_m adds to outputs of rows with adapters: B s of kernels/low_rank/low_rank.h. Four warps compute
// it beside the products and leave it in shared memory, with the bits of low_rank_expand.
namespace warprow::cuda::sm90_gemm_detail {

constexpr int kLowRankWarps = kLowRankSteps;
constexpr int kLowRankThreads = kLowRankWarps * 32;
constexpr int kSumsPitch = 48;  // bytes of a row's sums of kRankTile ranks; no bank conflicts
constexpr int kRunsAtOnce = 8;  // whose tiles of B a warp loads at once

// Shared memory: of the rows that the CTA finishes addends [rows][kPitch] f32, then sums [rows][kSumsPitch bytes] bf16; tiles of
// B, two buffers of kRunsAtOnce for each warp.
//
// The loops are not unrolled: this code runs once in a CTA, while a ring brings w, and unrolled forms of it made steps up to
// 16 % slower, presumably by misses of the instruction cache (docs/experiments/low_rank_cuda.md).
template <int kCols, int kGroups>
class LowRankAddends {
 public:
  using S = Sizes<kCols, kGroups>;

  static constexpr size_t bytes(int rows) {
    return static_cast<size_t>(rows) * (S::kPitch * 4 + kSumsPitch) +
           kLowRankWarps * 2 * kTilesBytes;
  }

  // thread: of kLowRankThreads.
  __device__ LowRankAddends(const Params& p,
                            const LowRankParams& term,
                            const Place& at,
                            unsigned char* memory,
                            int thread)
      : p_(p),
        term_(term),
        at_(at),
        addends_(shared_address(memory)),
        sums_(addends_ + p.part_rows * S::kPitch * 4),
        thread_(thread),
        warp_(warp_uniform(thread / 32)),
        lane_(thread % 32),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        span_(gate_ ? S::kRows / 2 : S::kRows),
        first_(at.tile * span_) {
    tiles_ = sums_ + p.part_rows * kSumsPitch + warp_ * (2 * kTilesBytes) + lane_ * 16;
  }

  __device__ void compute() {
    fetch_runs();
    clear();
    Item item = item_of(0);
    uint32_t tiles = tiles_;
    load_b(item, tiles);
    pdl_wait();
    scale_ = own_bank_ < 0 ? 0.0F : term_.scale<4>(own_token());
    bool fresh = true;  // the sums of item's part and ranks are not there yet
#pragma unroll 1
    while (item.part < term_.at.product.num_parts) {
      const Item next = next_of(item);
      const uint32_t other = tiles == tiles_ ? tiles_ + kTilesBytes : tiles_;
      load_b(next, other);
      if (fresh) {
        sync();  // all are done with the sums before
        store_rounded_sums(item.part, item.tile);
        sync();
      }
      copy_wait<1>();  // a lane reads what it has asked for itself
      multiply(item, tiles);
      fresh = next.part != item.part || next.tile != item.tile;
      item = next;
      tiles = other;
    }
  }

 private:
  static constexpr uint32_t kTilesBytes = kRunsAtOnce * 512;

  // kRunsAtOnce runs, a block of a part's columns, and kRankTile ranks.
  struct Item {
    int part;
    int tile;
    int block;
    int run;
  };

  static __device__ void sync() { named_sync(3, kLowRankThreads); }

  // The columns of a part that are in the tile are those from first_column to end_column.
  [[nodiscard]] __device__ int begin_of(int part) const {
    return gate_ ? 0 : term_.at.product.parts[part].y_col;
  }
  [[nodiscard]] __device__ int first_column(int part) const {
    return max(first_ - begin_of(part), 0);
  }
  [[nodiscard]] __device__ int end_column(int part) const {
    return min(first_ + span_ - begin_of(part), term_.at.product.parts[part].n);
  }
  [[nodiscard]] __device__ Item item_of(int part) const {
    while (part < term_.at.product.num_parts && first_column(part) >= end_column(part)) {
      ++part;
    }
    return {
        part, 0, part < term_.at.product.num_parts ? first_column(part) / kLowRankColumns : 0, 0};
  }
  [[nodiscard]] __device__ Item next_of(Item item) const {
    item.run += kRunsAtOnce;
    if (item.run >= num_runs_) {
      item.run = 0;
      ++item.block;
      if (item.block * kLowRankColumns >= end_column(item.part)) {
        ++item.tile;
        item.block = first_column(item.part) / kLowRankColumns;
        if (!__any_sync(~0U, of_part(ranks_, item.part) > item.tile * kRankTile)) {
          return item_of(item.part + 1);
        }
      }
    }
    return item;
  }

  using Ranks = int[kMaxLowRankParts];
  __device__ void fetch_ranks(int bank, Ranks& ranks) const {
#pragma unroll
    for (int part = 0; part < kMaxLowRankParts; ++part) {
      ranks[part] = bank >= 0 && part < term_.at.product.num_parts ? term_.at.rank(bank, part) : 0;
    }
  }
  [[nodiscard]] static __device__ int of_part(const Ranks& ranks, int part) {
    static_assert(kMaxLowRankParts == 4);
    return part < 2 ? (part == 0 ? ranks[0] : ranks[1]) : (part == 2 ? ranks[2] : ranks[3]);
  }
  // The row whose sums this thread adds: four adjacent threads have one.
  [[nodiscard]] __device__ int own_row() const { return thread_ / 4; }
  [[nodiscard]] __device__ int64_t own_token() const { return at_.row(own_row()); }

  // There are at most as many runs as rows, so a lane has one.
  __device__ void fetch_runs() {
    const BankRun run = term_.at.run(lane_, term_.num_runs);
    bank_ = run.count > 0 ? run.bank : -1;
    first_run_ = run.first;
    count_ = run.count;
    num_runs_ = __popc(__ballot_sync(~0U, bank_ >= 0));
    order_ = lane_ < p_.a.m ? __ldcg(term_.at.runs.order + lane_) : 0;
    own_bank_ = own_row() < at_.num_rows ? __ldcg(term_.at.runs.token_banks + own_token()) : -1;
    fetch_ranks(bank_, ranks_);
    fetch_ranks(own_bank_, own_ranks_);
  }

  // Rows without a bank get -0, which changes no value.
  __device__ void clear() const {
    constexpr uint32_t kMinusZero = 1U << 31;
#pragma unroll 1
    for (int i = thread_; i < at_.num_rows * S::kPitch / 4; i += kLowRankThreads) {
      store_shared_four(addends_ + i * 16, {kMinusZero, kMinusZero, kMinusZero, kMinusZero});
    }
  }

  // Asks for the item's tiles of B, zeros for those that a bank does not have.
  __device__ void load_b(const Item& item, uint32_t to) const {
    const LowRankPlace& at = term_.at;
    if (item.part < at.product.num_parts) {
      const int blocks = at.product.parts[item.part].n / kLowRankColumns;
      const int64_t from =
          (int64_t{item.tile} * blocks + item.block) * (kLowRankSteps * 32) + warp_ * 32 + lane_;
      const int rank = of_part(ranks_, item.part);
#pragma unroll 1
      for (int run = item.run; run < min(item.run + kRunsAtOnce, num_runs_); ++run, to += 512) {
        const int bank = __shfl_sync(~0U, bank_, run);
        const bool there = __shfl_sync(~0U, rank, run) > item.tile * kRankTile;
        copy16_async(to, at.b_tiles(bank, item.part) + from, there);
      }
    }
    copy_commit();
  }

  // The sums of four ranks of a row, over all chunks of inputs, rounded.
  __device__ void store_rounded_sums(int part, int tile) const {
    constexpr int kAtOnce = 12;
    const LowRankPlace& at = term_.at;
    if (own_row() >= at_.num_rows) {
      return;
    }
    float4 sum = {};
    if (of_part(own_ranks_, part) > tile * kRankTile) {
      const float* from =
          at.sums.sums + at.sums_at(0, own_token(), part) + tile * kRankTile + thread_ % 4 * 4;
      const int64_t stride = at.sums_at(1, 0, 0);
#pragma unroll 1
      for (int first = 0; first < term_.num_chunks; first += kAtOnce) {
        float4 v[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          v[i] = first + i < term_.num_chunks
                     ? *reinterpret_cast<const float4*>(from + (first + i) * stride)
                     : float4{};
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          sum = sum_of(sum, v[i]);
        }
      }
    }
    store_shared_two(sums_ + own_row() * kSumsPitch + thread_ % 4 * 8,
                     {pack_bf16(__fmul_rn(sum.x, scale_), __fmul_rn(sum.y, scale_)),
                      pack_bf16(__fmul_rn(sum.z, scale_), __fmul_rn(sum.w, scale_))});
  }

  // Of the rows that this CTA finishes, that of a run's column; or -1.
  [[nodiscard]] __device__ int row_of(int first, int count, int column) const {
    const int token = __shfl_sync(~0U, order_, (first + column) % 32);
    const int row = token - at_.first_row;
    return column < count && row >= 0 && row < at_.num_rows ? row : -1;
  }

  __device__ void multiply(const Item& item, uint32_t tiles) const {
    // Two adjacent columns of the part, and where they are in the tile.
    const int column = item.block * kLowRankColumns + lane_ / 4 * 8 + warp_ * 2;
    const bool is_column = first_column(item.part) <= column && column < end_column(item.part);
    const int in_tile =
        begin_of(item.part) - first_ + column + (gate_ && item.part == 1 ? span_ : 0);
    const int rank = of_part(ranks_, item.part);
#pragma unroll 1
    for (int run = item.run; run < min(item.run + kRunsAtOnce, num_runs_); ++run, tiles += 512) {
      if (item.tile > 0 && __shfl_sync(~0U, rank, run) <= item.tile * kRankTile) {
        continue;
      }
      const int first = __shfl_sync(~0U, first_run_, run);
      const int count = __shfl_sync(~0U, count_, run);
      const int of_sums = row_of(first, count, lane_ / 4);
      const uint4 b = load_shared_four(tiles);
      uint32_t sums[2] = {};
      if (of_sums >= 0) {
        const uint32_t from = sums_ + of_sums * kSumsPitch + lane_ % 4 * 4;
        sums[0] = load_shared(from);
        sums[1] = load_shared(from + 16);
      }
      uint32_t to[2];
      bool there[2];
      float v[4] = {};
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int row = row_of(first, count, lane_ % 4 * 2 + j);
        to[j] = addends_ + (row * S::kPitch + in_tile) * 4;
        there[j] = is_column && row >= 0;
        if (item.tile > 0 && there[j]) {
          const uint2 old = load_shared_two(to[j]);
          v[j] = __uint_as_float(old.x);
          v[j + 2] = __uint_as_float(old.y);
        }
      }
      mma_bf16(v, {b.x, b.y, b.z, b.w}, sums[0], sums[1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (there[j]) {
          store_shared_two(to[j], {__float_as_uint(v[j]), __float_as_uint(v[j + 2])});
        }
      }
    }
  }

  const Params& p_;
  const LowRankParams& term_;
  const Place& at_;
  uint32_t addends_;
  uint32_t sums_;
  uint32_t tiles_;  // the lane's part of the first one of its warp
  int thread_;
  int warp_;
  int lane_;
  bool gate_;
  int span_;   // outputs of the tile
  int first_;  // of them
  // The lane's run, and token number `lane` in the order of runs.
  int bank_ = -1;  // -1: none, or one of tokens without a bank
  int first_run_ = 0;
  int count_ = 0;
  int order_ = 0;
  int num_runs_ = 0;  // with a bank
  Ranks ranks_;
  int own_bank_ = -1;
  Ranks own_ranks_;
  float scale_ = 0.0F;
};

}  // namespace warprow::cuda::sm90_gemm_detail
