// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm90_block.cuh"
#include "kernels/linear/small_m/sm90_outputs.cuh"
#include "kernels/low_rank/low_rank.cuh"

#include <cstdint>

// What sm90_bf16_gemm_small_m adds to outputs of rows with adapters: B (A x) of kernels/low_rank/low_rank.h. Four warps compute
// it beside the products and leave it in shared memory, with the bits of low_rank_shrink and low_rank_expand. If
// low_rank_shrink has not run, they begin with its work, of which each CTA has a share, and take the others' sums as they come.
//
// The loops are not unrolled: this code runs once in a CTA, while a ring brings w, and unrolled forms of it made steps up to
// 16 % slower, presumably by misses of the instruction cache (docs/experiments/low_rank_cuda.md).
namespace warprow::cuda::sm90_gemm_detail {

constexpr int kLowRankWarps = 4;
constexpr int kLowRankThreads = kLowRankWarps * 32;
static_assert(kLowRankWarps == kLowRankSteps, "a warp has one mma of a block of columns");
constexpr uint32_t kTermTilesOfWarp = kSm90TermTilesBytes / kLowRankWarps;
// Named barrier: the warps that find the scales of half-normalised rows arrive at it, and these warps wait.
constexpr int kScalesForTerm = 5;

__device__ __forceinline__ void sync_low_rank() { named_sync(3, kLowRankThreads); }

// The runs with a bank, the ranks of their banks, and the tokens in the order of runs. Lane i has run i and token i, since there
// are at most 32 of each. All lanes of a warp call a method together, with the same run; token()'s number may differ.
class LaneRuns {
 public:
  using Ranks = int[kMaxLowRankParts];

  __device__ LaneRuns(const LowRankParams& term, int rows) {
    static_assert(kMaxTermRows <= 32);
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const BankRun run = term.at.run(lane, term.num_runs);
    bank_ = run.count > 0 ? run.bank : -1;
    first_ = run.first;
    count_ = run.count;
    num_ = __popc(__ballot_sync(~0U, bank_ >= 0));
    order_ = lane < rows ? __ldcg(term.at.runs.order + lane) : 0;
    fetch_ranks(term, bank_, ranks_);
  }
  static __device__ void fetch_ranks(const LowRankParams& term, int bank, Ranks& ranks) {
#pragma unroll
    for (int part = 0; part < kMaxLowRankParts; ++part) {
      ranks[part] = bank >= 0 && part < term.at.product.num_parts ? term.at.rank(bank, part) : 0;
    }
  }
  [[nodiscard]] static __device__ int of_part(const Ranks& ranks, int part) {
    static_assert(kMaxLowRankParts == 4);
    return part < 2 ? (part == 0 ? ranks[0] : ranks[1]) : (part == 2 ? ranks[2] : ranks[3]);
  }

  [[nodiscard]] __device__ int num() const { return num_; }
  [[nodiscard]] __device__ int bank(int run) const { return __shfl_sync(~0U, bank_, run); }
  [[nodiscard]] __device__ int first(int run) const { return __shfl_sync(~0U, first_, run); }
  [[nodiscard]] __device__ int count(int run) const { return __shfl_sync(~0U, count_, run); }
  [[nodiscard]] __device__ int rank(int run, int part) const {
    return __shfl_sync(~0U, of_part(ranks_, part), run);
  }
  [[nodiscard]] __device__ bool any_above(int part, int rank) const {
    return __any_sync(~0U, of_part(ranks_, part) > rank);
  }
  // The token with this number in the order of runs.
  [[nodiscard]] __device__ int token(int number) const {
    return __shfl_sync(~0U, order_, number % 32);
  }

 private:
  int bank_ = -1;  // -1: no run, or one of tokens without a bank
  int first_ = 0;
  int count_ = 0;
  int order_ = 0;
  int num_ = 0;
  Ranks ranks_;
};

// Sums that other CTAs leave in memory while this one waits for them (LowRankTerm::shrinks).
__device__ __forceinline__ void leave_sum(float* to, float sum) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(sum) : "memory");
}
__device__ __forceinline__ uint4 look_at_sums(const float* from) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from)
               : "memory");
  return v;
}

// This CTA's share of the first half. A unit is a run, a chunk of inputs and a part, and a warp does the work of every fourth
// warp of low_rank_shrink.
//
// Shared memory: x [warps][kRounds][kBlocks][32 lanes][16 bytes]; A's tiles [warps][kRounds][kBlocks][2][32][16], and later in
// the place of each round its sums [kRunToks][kRankTile] f32.
class LowRankUnits {
 public:
  __device__ LowRankUnits(const Params& p,
                          const LowRankParams& term,
                          const LaneRuns& runs,
                          uint32_t x,
                          uint32_t tiles,
                          int thread)
      : p_(p),
        term_(term),
        runs_(runs),
        thread_(thread),
        warp_(warp_uniform(thread / 32)),
        lane_(thread % 32),
        x_(x + warp_ * (kRounds * kBlocks * 512) + lane_ * 16),
        sums_(tiles),
        tiles_(tiles + warp_ * kTermTilesOfWarp + lane_ * 16) {}

  __device__ void compute() const {
    const int units = runs_.num() * term_.cut.num_chunks * term_.at.product.num_parts;
#pragma unroll 1
    for (int unit = static_cast<int>(blockIdx.x); unit < units;
         unit += static_cast<int>(gridDim.x)) {
      const int run = unit % runs_.num();
      const int chunk = unit / runs_.num() % term_.cut.num_chunks;
      const int part = unit / runs_.num() / term_.cut.num_chunks;
      const int rank = runs_.rank(run, part);
#pragma unroll 1
      for (int tile = 0; tile * kRankTile < rank; ++tile) {
        load_tiles(run, chunk, part, tile);
        pdl_wait();
        load_x(run, chunk);
        copy_commit();
        copy_wait<0>();  // a lane reads what it has asked for itself
        multiply();
        sync_low_rank();
        add_warps(run, chunk, part, tile);
        sync_low_rank();
      }
    }
  }

 private:
  static constexpr int kBlocks = kLowRankWarpBlocks;
  static constexpr int kRounds = kMostLowRankWarps / kLowRankWarps;  // of a warp
  static constexpr int kRoundBytes = kBlocks * 2 * 512;
  static_assert(kRounds * kRoundBytes == kTermTilesOfWarp);
  static_assert(kLowRankWarps * kRounds * kBlocks * 512 == kSm90TermXBytes);
  static_assert(kRunToks * kRankTile == kLowRankThreads);

  // The number of the block of 32 inputs that is the warp's j-th, over all rounds; or -1.
  [[nodiscard]] __device__ int block_of(int chunk, int j) const {
    const int of_cut = warp_ + j / kBlocks * kLowRankWarps;
    return of_cut < term_.cut.warps ? (chunk * term_.cut.warps + of_cut) * kBlocks + j % kBlocks
                                    : -1;
  }
  __device__ void load_tiles(int run, int chunk, int part, int tile) const {
    const int blocks = (term_.at.product.k + 31) / 32;
    const uint4* from =
        term_.at.a_tiles(runs_.bank(run), part) + int64_t{tile} * blocks * 64 + lane_;
#pragma unroll 1
    for (int j = 0; j < kRounds * kBlocks * 2; ++j) {
      const int block = block_of(chunk, j / 2);
      copy16_async(tiles_ + j * 512, from + (block * 2 + j % 2) * 32, block >= 0 && block < blocks);
    }
  }
  __device__ void load_x(int run, int chunk) const {
    const int token = runs_.token(runs_.first(run) + lane_ / 4);
    const bool there = lane_ / 4 < runs_.count(run);
    const auto* from = static_cast<const Bf16*>(p_.a.x) + token * p_.a.x_stride;
#pragma unroll 1
    for (int j = 0; j < kRounds * kBlocks; ++j) {
      const int block = block_of(chunk, j);
      const int input = block * 32 + lane_ % 4 * 8;
      copy16_async(x_ + j * 512, from + input, there && block >= 0 && input < term_.at.product.k);
    }
  }
  __device__ void multiply() const {
#pragma unroll 1
    for (int round = 0; round < kRounds; ++round) {
      const uint32_t tiles = tiles_ + round * kRoundBytes;
      float sum[4] = {};
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
        const uint4 x = load_shared_four(x_ + (round * kBlocks + block) * 512);
        const uint4 low = load_shared_four(tiles + block * 1024);
        const uint4 high = load_shared_four(tiles + block * 1024 + 512);
        add_low_rank_block(sum, low, high, x);
      }
      __syncwarp();  // all have read the round's tiles
      // Of ranks g and g + 8 a lane has those of two tokens.
      const uint32_t to = sums_ + warp_ * kTermTilesOfWarp + round * kRoundBytes +
                          (lane_ % 4 * 2 * kRankTile + lane_ / 4) * 4;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        store_shared_float(to + (i % 2 * kRankTile + i / 2 * 8) * 4, sum[i]);
      }
    }
  }
  // Adds a token's sums of one rank, in the order of the cut's warps.
  __device__ void add_warps(int run, int chunk, int part, int tile) const {
    const int column = thread_ / kRankTile;
    const int token = runs_.token(runs_.first(run) + column);
    const uint32_t from = sums_ + thread_ * 4;
    float sum = __uint_as_float(load_shared(from));
#pragma unroll 1
    for (int of_cut = 1; of_cut < term_.cut.warps; ++of_cut) {
      const uint32_t at =
          from + of_cut % kLowRankWarps * kTermTilesOfWarp + of_cut / kLowRankWarps * kRoundBytes;
      sum = __fadd_rn(sum, __uint_as_float(load_shared(at)));
    }
    if (column < runs_.count(run)) {
      leave_sum(term_.at.sums.sums + term_.at.sums_at(chunk, token, part) + tile * kRankTile +
                    thread_ % kRankTile,
                sum);
    }
  }
  static __device__ void store_shared_float(uint32_t shared, float v) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(v) : "memory");
  }

  const Params& p_;
  const LowRankParams& term_;
  const LaneRuns& runs_;
  int thread_;
  int warp_;
  int lane_;
  uint32_t x_;      // the lane's part of the first one of its warp
  uint32_t sums_;   // of the first warp
  uint32_t tiles_;  // as x_
};

// Shared memory: of the rows that the CTA finishes addends [rows][kPitch] f32, then sums [rows][kSm90TermSumsPitch bytes] bf16;
// tiles of B, two buffers of kRunsAtOnce for each warp. LowRankUnits have the same memory before.
template <int kCols, int kGroups>
class LowRankAddends {
 public:
  using S = Sizes<kCols, kGroups>;

  static constexpr size_t bytes(int rows) {
    return static_cast<size_t>(sm90_term_tiles_at(rows, S::kPitch * 4)) + kSm90TermTilesBytes;
  }

  // scales: where other warps leave those of half-normalised rows. thread: of kLowRankThreads.
  __device__ LowRankAddends(const Params& p,
                            const LowRankParams& term,
                            const Place& at,
                            unsigned char* memory,
                            const float* scales,
                            int thread)
      : p_(p),
        term_(term),
        at_(at),
        runs_(term, p.a.m),
        addends_(shared_address(memory)),
        sums_(addends_ + p.part_rows * S::kPitch * 4),
        tiles_of_all_(addends_ + sm90_term_tiles_at(p.part_rows, S::kPitch * 4)),
        scales_(scales),
        thread_(thread),
        warp_(warp_uniform(thread / 32)),
        lane_(thread % 32),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        span_(gate_ ? S::kRows / 2 : S::kRows),
        first_(at.tile * span_) {
    tiles_ = tiles_of_all_ + warp_ * kTermTilesOfWarp + lane_ * 16;
    own_bank_ = own_row() < at.num_rows ? __ldcg(term.at.runs.token_banks + own_token()) : -1;
    LaneRuns::fetch_ranks(term, own_bank_, own_ranks_);
  }

  __device__ void compute() {
    if (term_.shrinks) {
      LowRankUnits(p_, term_, runs_, addends_, tiles_of_all_, thread_).compute();
    }
    clear();
    Item item = item_of(0);
    uint32_t tiles = tiles_;
    load_b(item, tiles);
    pdl_wait();
    scale_ = own_scale();
    bool fresh = true;  // the sums of item's part and ranks are not there yet
#pragma unroll 1
    while (item.part < term_.at.product.num_parts) {
      const Item next = next_of(item);
      const uint32_t other = tiles == tiles_ ? tiles_ + kTilesBytes : tiles_;
      load_b(next, other);
      if (fresh) {
        sync_low_rank();  // all are done with the sums before
        store_rounded_sums(item.part, item.tile);
        sync_low_rank();
      }
      copy_wait<1>();  // a lane reads what it has asked for itself
      multiply(item, tiles);
      fresh = next.part != item.part || next.tile != item.tile;
      item = next;
      tiles = other;
    }
  }

 private:
  static constexpr int kRunsAtOnce = 8;  // whose tiles of B a warp loads at once
  static constexpr uint32_t kTilesBytes = kRunsAtOnce * 512;
  static_assert(2 * kTilesBytes == kTermTilesOfWarp);

  // kRunsAtOnce runs, a block of a part's columns, and kRankTile ranks.
  struct Item {
    int part;
    int tile;
    int block;
    int run;
  };

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
    if (item.run >= runs_.num()) {
      item.run = 0;
      ++item.block;
      if (item.block * kLowRankColumns >= end_column(item.part)) {
        ++item.tile;
        item.block = first_column(item.part) / kLowRankColumns;
        if (!runs_.any_above(item.part, item.tile * kRankTile)) {
          return item_of(item.part + 1);
        }
      }
    }
    return item;
  }

  // The row whose sums this thread adds: four adjacent threads have one.
  [[nodiscard]] __device__ int own_row() const { return thread_ / 4; }
  [[nodiscard]] __device__ int64_t own_token() const { return at_.row(own_row()); }
  // What they are multiplied by.
  [[nodiscard]] __device__ float own_scale() const {
    if (p_.a.squares == nullptr) {
      return term_.scale(own_bank_ < 0 ? -1 : own_token());
    }
    named_sync(kScalesForTerm, kLowRankThreads + 32 * kScaleWarps<kCols>);
    return scales_[own_row()];
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
#pragma unroll 1
      for (int run = item.run; run < min(item.run + kRunsAtOnce, runs_.num()); ++run, to += 512) {
        const int bank = runs_.bank(run);
        const bool there = runs_.rank(run, item.part) > item.tile * kRankTile;
        copy16_async(to, at.b_tiles(bank, item.part) + from, there);
      }
    }
    copy_commit();
  }

  // The sums of four ranks of a row, over all chunks of inputs, rounded. Waits for those that other CTAs compute.
  __device__ void store_rounded_sums(int part, int tile) const {
    constexpr int kAtOnce = 12;
    const LowRankPlace& at = term_.at;
    if (own_row() >= at_.num_rows) {
      return;
    }
    float4 sum = {};
    if (LaneRuns::of_part(own_ranks_, part) > tile * kRankTile) {
      const float* from =
          at.sums.sums + at.sums_at(0, own_token(), part) + tile * kRankTile + thread_ % 4 * 4;
      const int64_t stride = at.sums_at(1, 0, 0);
#pragma unroll 1
      for (int first = 0; first < term_.cut.num_chunks;) {
        uint4 v[kAtOnce];
        uint32_t largest = 0;
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          v[i] = first + i < term_.cut.num_chunks ? look_at_sums(from + (first + i) * stride)
                                                  : uint4{};
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          largest = max(max(max(largest, v[i].x), v[i].y), max(v[i].z, v[i].w));
        }
        if (largest == ~0U) {  // kUnsetSumByte
          continue;
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          sum = sum_of(sum,
                       {__uint_as_float(v[i].x),
                        __uint_as_float(v[i].y),
                        __uint_as_float(v[i].z),
                        __uint_as_float(v[i].w)});
        }
        first += kAtOnce;
      }
    }
    store_shared_two(sums_ + own_row() * kSm90TermSumsPitch + thread_ % 4 * 8,
                     {pack_bf16(__fmul_rn(sum.x, scale_), __fmul_rn(sum.y, scale_)),
                      pack_bf16(__fmul_rn(sum.z, scale_), __fmul_rn(sum.w, scale_))});
  }

  // Of the rows that this CTA finishes, that of a run's column; or -1.
  [[nodiscard]] __device__ int row_of(int first, int count, int column) const {
    const int row = runs_.token(first + column) - at_.first_row;
    return column < count && row >= 0 && row < at_.num_rows ? row : -1;
  }

  __device__ void multiply(const Item& item, uint32_t tiles) const {
    // Two adjacent columns of the part, and where they are in the tile.
    const int column = item.block * kLowRankColumns + lane_ / 4 * 8 + warp_ * 2;
    const bool is_column = first_column(item.part) <= column && column < end_column(item.part);
    const int in_tile =
        begin_of(item.part) - first_ + column + (gate_ && item.part == 1 ? span_ : 0);
#pragma unroll 1
    for (int run = item.run; run < min(item.run + kRunsAtOnce, runs_.num()); ++run, tiles += 512) {
      if (item.tile > 0 && runs_.rank(run, item.part) <= item.tile * kRankTile) {
        continue;
      }
      const int first = runs_.first(run);
      const int count = runs_.count(run);
      const int of_sums = row_of(first, count, lane_ / 4);
      const uint4 b = load_shared_four(tiles);
      uint32_t sums[2] = {};
      if (of_sums >= 0) {
        const uint32_t from = sums_ + of_sums * kSm90TermSumsPitch + lane_ % 4 * 4;
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
  const LaneRuns runs_;
  uint32_t addends_;
  uint32_t sums_;
  uint32_t tiles_of_all_;
  const float* scales_;
  int thread_;
  int warp_;
  int lane_;
  bool gate_;
  int span_;        // outputs of the tile
  int first_;       // of them
  uint32_t tiles_;  // the lane's part of the first one of its warp
  int own_bank_;
  LaneRuns::Ranks own_ranks_;
  float scale_ = 1.0F;
};

}  // namespace warprow::cuda::sm90_gemm_detail
