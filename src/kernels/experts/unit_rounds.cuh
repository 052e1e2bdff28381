// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/sm90_expert_gemm.h"

#include <algorithm>
#include <cstdint>
#include <cuda_runtime.h>

// How sm90_unit_expert_gemm shares out its work, and sm90_mxfp4_unit_gemm but for its rounds. A unit is 16 rows of an expert's matrix (gated: and their up rows) and the places of
// a tile of the work list. Each CTA has an equal, adjacent share of the units of all tiles, in order. Its warps have adjacent
// units in rounds, of one or two tiles of the list, whose rows of x they share.
namespace warprow::cuda {

constexpr int kUnitPlaces = 8;  // most places of a tile of the list
constexpr int kRoundTiles = 2;  // of the list, in a round
constexpr int kListRoom = 192;  // entries of the list in shared memory

// For quotient(): d times it is just above 2^32. 0 for d = 1.
inline uint32_t inverse(int32_t d) {
  return d == 1 ? 0 : static_cast<uint32_t>((int64_t{1} << 32) / d + 1);
}
// a / d for 0 <= a < 2^32 / d.
__device__ __forceinline__ int quotient(int a, uint32_t inverse) {
  return inverse == 0 ? a : static_cast<int>(__umulhi(static_cast<uint32_t>(a), inverse));
}

// What a kernel knows of the units before it runs.
struct UnitShares {
  int32_t units;   // of a tile of the list
  int32_t x_rows;  // most places of a tile of the list
  uint32_t inverse_units;
  uint32_t inverse_grid;

  UnitShares(const ExpertGemmArgs& args, int32_t units, int32_t grid)
      : units(units),
        x_rows(std::clamp(args.max_places / args.num_chosen, 1, kUnitPlaces)),
        inverse_units(inverse(units)),
        inverse_grid(inverse(grid)) {
    WR_CHECK_LT(int64_t{args.max_tiles} * units * std::max(units, grid), int64_t{1} << 32);
    // Tiles of the list that a CTA's share may touch.
    WR_CHECK(args.max_tiles <= kListRoom || args.max_tiles / grid + 2 < kListRoom,
             "{} tiles of experts",
             args.max_tiles);
  }
};

// a / b for numbers of up to 2^20: a part of the instructions of a division.
__device__ __forceinline__ int small_quotient(int a, int b) {
  return static_cast<int>(__fdividef(static_cast<float>(a) + 0.5F, static_cast<float>(b)));
}

// Units that the CTA's warps have at a time, and what is behind them.
struct Round {
  int tile;    // of the list, of the first unit
  int number;  // of the first unit, in that tile
  int left;    // units of this round and those behind it
  int width;   // most units of a round

  [[nodiscard]] __device__ __forceinline__ int count(int units) const {
    return min(min(left, width), kRoundTiles * units - number);
  }
  // Of how many tiles its units are.
  [[nodiscard]] __device__ __forceinline__ int num_tiles(int units) const {
    return number + count(units) > units ? 2 : 1;
  }
  // Makes the rounds equally wide; there are as many of them.
  __device__ __forceinline__ void even_out() {
    const int rounds = max(1, small_quotient(left + width - 1, width));
    width = small_quotient(left + rounds - 1, rounds);
  }
  __device__ __forceinline__ void next(int units) {
    const int n = count(units);
    left -= n;
    number += n;
#pragma unroll
    for (int i = 0; i < kRoundTiles; ++i) {
      if (number >= units) {
        number -= units;
        ++tile;
      }
    }
  }
};

// All units of this CTA, in rounds of most_units.
__device__ __forceinline__ Round share_of_cta(const UnitShares& shares,
                                              int num_tiles,
                                              int most_units) {
  const int units = num_tiles * shares.units;
  const auto cta = static_cast<int>(blockIdx.x);
  const auto share = quotient(units, shares.inverse_grid);
  const int more = units - share * static_cast<int>(gridDim.x);
  const int first = cta * share + min(cta, more);
  Round round;
  round.tile = quotient(first, shares.inverse_units);
  round.number = first - round.tile * shares.units;
  round.left = share + (cta < more ? 1 : 0);
  round.width = most_units;
  return round;
}

// The work list as far as a CTA needs it, in shared memory.
struct UnitList {
  const int4* entries;
  int first_tile;

  [[nodiscard]] __device__ __forceinline__ int4 entry(int tile) const {
    return entries[tile - first_tile];
  }
};

// All threads of a CTA, at least kListRoom: read the list to `to`. Behind a __syncthreads(), `list` is valid for the returned
// share.
__device__ __forceinline__ Round read_list(const ExpertGemmArgs& a,
                                           const UnitShares& shares,
                                           int most_units,
                                           int4 (&to)[kListRoom],
                                           UnitList& list) {
  const int num_tiles = __ldcg(a.tiles);
  const auto thread = static_cast<int>(threadIdx.x);
  const auto copy = [&](int first) {
    if (thread < min(kListRoom, a.max_tiles - first)) {
      to[thread] = __ldcg(reinterpret_cast<const int4*>(a.tiles) + 1 + first + thread);
    }
  };
  // Where the list is short, it is read before it is known how long it is.
  const bool is_short = a.max_tiles <= kListRoom;
  if (is_short) {
    copy(0);
  }
  const Round round = share_of_cta(shares, warp_uniform(num_tiles), most_units);
  if (!is_short) {
    copy(round.tile);
  }
  list = {to, is_short ? 0 : round.tile};
  return round;
}

// Unit `index` of a round.
struct Unit {
  int4 entry;  // of the list: {expert, first place, number of places}
  int number;  // in the expert's matrix
  int slot;    // 1: of the second tile of the round

  __device__ __forceinline__ Unit(const UnitList& list, const Round& round, int units, int index)
      : number(round.number + index), slot(number >= units ? 1 : 0) {
    number -= slot * units;
    entry = list.entry(round.tile + slot);
  }
};

// The rows of x of a round, one for each lane: those of a tile's places, from lane slot * x_rows on.
struct RoundRows {
  const Bf16* own = nullptr;  // the lane's row; null: it has none
  int count = 0;              // of all lanes

  __device__ __forceinline__ RoundRows(const ExpertGemmArgs& a,
                                       const UnitShares& shares,
                                       const UnitList& list,
                                       const Round& round) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int slot = 0; slot < kRoundTiles; ++slot) {
      if (slot >= round.num_tiles(shares.units)) {
        break;
      }
      const int4 entry = list.entry(round.tile + slot);
      count += entry.z;
      const int at = lane - slot * shares.x_rows;
      if (at >= 0 && at < entry.z) {
        int64_t row = entry.y + at;
        if (a.slots != nullptr) {
          row = __ldcg(a.slots + row) / a.num_chosen;
        }
        own = static_cast<const Bf16*>(a.x) + row * a.x_stride;
      }
    }
  }
};

}  // namespace warprow::cuda
