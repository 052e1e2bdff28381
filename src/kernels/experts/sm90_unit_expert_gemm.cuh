// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_w.cuh"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/experts/unit_rounds.cuh"
#include "kernels/linear/quant/quant_numbers.cuh"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/shared_tile.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in expert_linear.h, for matrices in tiles of linear operations (quant_tiles.h) and tiles of the work list of up
//   to eight places.
// Mapping: one CTA an SM; units and rounds as in unit_rounds.cuh. A warp has 16 rows in one chain of mma.sync m16n8k16 over k; of
//   a gated unit two warps have the gate and the up rows, and they exchange half of their sums. One more warp copies the rows of x
//   of a round to a ring that all warps share. Each warp copies w to a ring of its own, across the ends of units. If a round has
//   few units, their rings are deeper.
// Bytes moved: the matrices of all experts in the list, once for each of their tiles; x from L2 once a round.
//   A product with x by place follows another product with the same list. That one waited for the list, so this one reads the
//   list and loads w before it waits for the preceding kernel.
// Numerics: as sm90_expert_gemm, bit for bit.
// Preconditions: as sm90_expert_gemm.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_unit_detail {

constexpr int kWarps = 16;  // that multiply
constexpr int kThreads = (kWarps + 1) * 32;
constexpr int kStageTiles = 2;  // of 128 inputs, in a stage of x
constexpr int kStageInputs = kStageTiles * kQuantTileCols;
constexpr int kRowBytes = kStageInputs * 2 + 16;     // of x in a stage; no bank conflicts
constexpr int kMaxStages = 8;                        // of x
constexpr int kMaxCopies = kWarps * kMaxStages;      // of w, in the rings of all warps
constexpr int kExchangeBytes = 2 * kWarps * 32 * 8;  // half of the sums, double-buffered
constexpr int kSharedBytes = 208 * 1024;             // room for a small kernel beside this one
constexpr int kXBytes = kRoundTiles * kUnitPlaces * kRowBytes * 3;  // for all stages

using XRing = RingCursor<kMaxStages>;

// Tiles of w in a copy: about 2 KB.
constexpr int copy_tiles(PackedKind kind) { return quant_number_bytes(kind) > 1024 ? 1 : 2; }

struct Params {
  ExpertGemmArgs a;
  ScaleGroups scales;
  UnitShares shares;
  int32_t tiles;          // of 128 inputs
  int32_t x_stage_bytes;  // rows of x of a round
  int32_t x_stages;
  int32_t copy_bytes;  // room for a copy
  int32_t copies;      // room for so many, in all rings
  uint32_t zero;       // 0, which the compiler does not know
};

// What the CTA's warps share.
struct Shared {
  UnitList list;
  float2* exchange;
  uint32_t copies;
  uint32_t copy_barriers;
};

// One warp: copies rows of x.
__device__ __forceinline__ void load_x(const Params& p,
                                       const Shared& shared,
                                       XRing ring,
                                       Round round) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = read_again();
  for (; round.left > 0; round.next(p.shares.units)) {
    const RoundRows rows(p.a, p.shares, shared.list, round);
    for (int input = 0; input < p.a.k; input += kStageInputs, ring.next()) {
      const int bytes = min(kStageInputs, p.a.k - input) * 2;
      const uint32_t own = ring.data + ring.stage * p.x_stage_bytes + lane * kRowBytes;
      barrier_wait(ring.empty(), ring.phase ^ 1);
      fence_async_proxy();
      if (rows.own != nullptr) {
        // Zeros behind the row's end, up to that of a tile.
        for (int at = bytes; at % (kQuantTileCols * 2) != 0; at += 16) {
          store_shared_four(own + at, uint4{});
        }
      }
      __syncwarp();
      if (lane == 0) {
        barrier_arrive_expecting(ring.full(), rows.count * bytes);
      }
      __syncwarp();
      if (rows.own != nullptr) {
        bulk_load(own, rows.own + input, bytes, ring.full(), policy);
      }
    }
  }
}

// A warp that multiplies.
template <PackedKind kKind, bool kGates>
class UnitWarp {
 public:
  __device__ __forceinline__
  UnitWarp(const Params& p, const Shared& shared, const XRing& ring, int warp)
      : p_(p),
        shared_(shared),
        x_(ring),
        lane_(static_cast<int>(threadIdx.x) % 32),
        index_(warp / kMembers),
        member_(warp % kMembers),
        policy_(read_once()) {}

  // All rounds from `round` on. wait: called when the first tiles of w are on their way.
  template <typename Wait>
  __device__ __forceinline__ void run(const Round& round, const Wait& wait) {
    stages_ = small_quotient(p_.copies, kMembers * round.width);
    const int first = (index_ * kMembers + member_) * stages_;
    data_ = warp_uniform(shared_.copies + first * p_.copy_bytes);
    barriers_ = warp_uniform(shared_.copy_barriers + first * 8);
    feed_.round = round;
    feed_.enter(*this);
    for (int s = 0; s < stages_ && feed_.left > 0; ++s) {
      load_w(s, 0);
    }
    __syncwarp();
    wait();
    with_scale_groups<kKind>(p_.scales, [&]<typename Tile, int kGroupSteps> {
      typename Tile::Scale codes[2];
      set_codes<kKind>(p_.scales.codes, 0, codes[0]);
      set_codes<kKind>(p_.scales.codes, 1, codes[1]);
      int turn = 0;
      for (Round now = round; now.left > 0; now.next(p_.shares.units), ++turn) {
        if (index_ < now.count(p_.shares.units)) {
          multiply_unit<Tile, kGroupSteps>(now, codes, turn);
        } else {
          skip();
        }
      }
    });
  }

 private:
  static constexpr int kMembers = kGates ? 2 : 1;
  using Numbers = QuantNumbers<kKind>;
  static constexpr int kCopyTiles = copy_tiles(kKind);

  // What is to be loaded next, ahead of the products.
  struct Feed {
    Round round;
    const std::byte* w;
    int left;  // tiles of the unit; 0: there is no more

    // Moves to the warp's unit in `round`, or in the next round in which it has one.
    __device__ __forceinline__ void enter(const UnitWarp& of) {
      const Params& p = of.p_;
      while (round.left > 0 && of.index_ >= round.count(p.shares.units)) {
        round.next(p.shares.units);
      }
      left = 0;
      if (round.left > 0) {
        const Unit unit(of.shared_.list, round, p.shares.units, of.index_);
        const int64_t rows = int64_t{warp_uniform(unit.entry.x)} * (p.a.n / kQuantTileRows) +
                             of.member_ * p.shares.units + unit.number;
        w = static_cast<const std::byte*>(p.a.w) + rows * p.tiles * p.a.tile_bytes;
        left = p.tiles;
      }
    }
  };

  // Copies the next tiles to stage s. zero: added to the address of the stage's barrier.
  __device__ __forceinline__ void load_w(int s, uint32_t zero) {
    const int bytes = min(kCopyTiles, feed_.left) * p_.a.tile_bytes;
    if (elect_one()) {
      const uint32_t full = barriers_ + s * 8 + zero;
      barrier_arrive_expecting(full, bytes);
      bulk_load(data_ + s * p_.copy_bytes, feed_.w, bytes, full, policy_);
    }
    feed_.w += bytes;
    feed_.left -= kCopyTiles;
    if (feed_.left <= 0) {
      feed_.round.next(p_.shares.units);
      feed_.enter(*this);
    }
  }

  // last: a register of the warp's last load from the stage. The address of the barrier takes it, so what follows waits for it
  // (sm90_quant_gemm).
  __device__ __forceinline__ void refill(uint32_t last) {
    __syncwarp();
    if (feed_.left > 0) {
      load_w(stage_, last & p_.zero);
    }
    if (++stage_ == stages_) {
      stage_ = 0;
      phase_ ^= 1;
    }
  }
  __device__ __forceinline__ void release_x(uint32_t last) {
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(x_.empty() + (last & p_.zero));
    }
    x_.next();
  }

  // This warp has no unit in the round, but other warps have.
  __device__ __forceinline__ void skip() {
    for (int tile = 0; tile < p_.tiles; tile += kStageTiles) {
      barrier_wait(x_.full(), x_.phase);
      release_x(0);
    }
  }

  // Adds the products of a tile. x: the lane's part of the rows of x; codes: scales with what all groups have. Returns a register
  // that is known when the last loads from w and x have arrived. All reads come first, so that they wait for each other least.
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ static uint32_t multiply(const Tile& tile,
                                                      uint32_t x,
                                                      const typename Tile::Scale (&codes)[2],
                                                      float (&sum)[4]) {
    typename Tile::Words words;
    tile.read(words);
    typename Tile::Scale scales[Tile::kGroups][2];
#pragma unroll
    for (int group = 0; group < Tile::kGroups; ++group) {
      scales[group][0] = codes[0];
      scales[group][1] = codes[1];
      tile.read_scales(group, scales[group]);
    }
    uint32_t b[4][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      load_matrices(b[i], x + i * 64);
    }
#pragma unroll
    for (int step = 0; step < 8; ++step) {
      uint32_t d[4];
      Tile::decode(words, step, scales[step / kGroupSteps], d);
      mma_bf16(sum, d, b[step / 2][step % 2 * 2], b[step / 2][step % 2 * 2 + 1]);
    }
    return b[3][3];
  }

  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void multiply_unit(const Round& round,
                                                const typename Tile::Scale (&codes)[2],
                                                int turn) {
    const Unit unit(shared_.list, round, p_.shares.units, index_);
    // Rows behind the last one have its values, and their products are not used.
    const int row = unit.slot * p_.shares.x_rows + min(lane_ % kUnitPlaces, p_.shares.x_rows - 1);
    const uint32_t x_at = row * kRowBytes + lane_ / 8 * 16;
    float sum[4] = {};
#pragma unroll 1
    for (int left = p_.tiles; left > 0; left -= kStageTiles) {
      barrier_wait(x_.full(), x_.phase);
      const uint32_t x = x_.data + x_.stage * p_.x_stage_bytes + x_at;
      uint32_t last = 0;
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        if (i > 0 && i >= left) {
          break;
        }
        if (i % kCopyTiles == 0) {
          barrier_wait(barriers_ + stage_ * 8, phase_);
        }
        const uint32_t w = data_ + stage_ * p_.copy_bytes + i % kCopyTiles * p_.a.tile_bytes;
        last = multiply<Tile, kGroupSteps>(
            Tile(w, lane_, p_.scales.has_zeros), x + i * 256, codes, sum);
        if (kCopyTiles == 1) {
          refill(last);
        }
      }
      if (kCopyTiles > 1) {
        refill(last);
      }
      release_x(last);
    }
    if constexpr (Numbers::kTimes != 1.0F) {
#pragma unroll
      for (float& v : sum) {
        v = __fmul_rn(v, Numbers::kTimes);
      }
    }
    write(sum, unit, turn);
  }

  __device__ __forceinline__ void write(float (&sum)[4], const Unit& unit, int turn) const {
    const int outputs = kGates ? p_.a.n / 2 : p_.a.n;
    int first = unit.number * kQuantTileRows;
    if constexpr (kGates) {
      // The warp of the gate rows has eight outputs, that of the up rows the eight behind them.
      float2* to = shared_.exchange + turn % 2 * (kWarps * 32);
      to[threadIdx.x] = member_ == 0 ? float2{sum[2], sum[3]} : float2{sum[0], sum[1]};
      named_sync(1 + index_, 64);
      const float2 other = to[threadIdx.x ^ 32];
      if (member_ == 0) {
        sum[2] = other.x;
        sum[3] = other.y;
      } else {
        sum[0] = other.x;
        sum[1] = other.y;
      }
      first += member_ * 8;
    }
    const ExpertBias bias(p_.a, kGates, unit.entry.x, kGates ? 2 * first : first, lane_);
    Bf16* to = static_cast<Bf16*>(p_.a.y) + (unit.entry.y + lane_ / 4) * p_.a.y_stride + first +
               lane_ % 4 * 2;
    with_gate_form<kGates>(p_.a.gate_limit, [&]<GateForm kForm>() {
      store_products<kGates, kForm>(sum, bias, to, lane_ / 4 < unit.entry.z, first, outputs);
    });
  }

  const Params& p_;
  const Shared& shared_;
  XRing x_;
  int lane_;
  int index_;   // of its unit in a round
  int member_;  // of a gated unit's warps: 0 has the gate rows
  uint64_t policy_;
  uint32_t data_ = 0;
  uint32_t barriers_ = 0;
  int stages_ = 0;
  int stage_ = 0;
  uint32_t phase_ = 0;
  Feed feed_ = {};
};

template <PackedKind kKind, bool kGates>
__global__ void __launch_bounds__(kThreads, 1) unit_expert_kernel(
    const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ int4 list[kListRoom];
  __shared__ uint64_t copy_barriers[kMaxCopies];
  __shared__ uint64_t x_barriers[2 * kMaxStages];
  const auto thread = static_cast<int>(threadIdx.x);
  const bool lists_are_old = p.a.slots == nullptr;
  const int warp = warp_uniform(thread / 32);
  const int lane = thread % 32;
  if (lane < kMaxStages) {
    if (warp == kWarps) {
      barrier_init(shared_address(x_barriers + lane), 1);
      barrier_init(shared_address(x_barriers + kMaxStages + lane), kWarps);
    } else {
      barrier_init(shared_address(copy_barriers + warp * kMaxStages + lane), 1);
    }
    fence_async_proxy();
  }
  const auto wait = [&](bool now) {
    if (now) {
      pdl_wait();
      pdl_release();
    }
  };
  wait(!lists_are_old);
  Shared shared;
  Round round = read_list(p.a, p.shares, kGates ? kWarps / 2 : kWarps, list, shared.list);
  round.even_out();  // the last round keeps as many bytes in flight as others
  __syncthreads();
  const uint32_t x = shared_address(memory) + kExchangeBytes;
  shared.exchange = reinterpret_cast<float2*>(memory);
  shared.copies = x + kXBytes;
  shared.copy_barriers = shared_address(copy_barriers);
  const XRing ring{x, shared_address(x_barriers), p.x_stages};
  if (round.left == 0) {
    wait(lists_are_old);
  } else if (warp == kWarps) {
    wait(lists_are_old);
    load_x(p, shared, ring, round);
  } else {
    UnitWarp<kKind, kGates>(p, shared, ring, warp).run(round, [&] { wait(lists_are_old); });
  }
}

template <PackedKind kKind, bool kGates>
void launch_instance(Stream& stream, const ExpertGemmArgs& args) {
  const int32_t grid = stream.device().facts().num_sms;
  const UnitShares shares(args, args.n / (kGates ? 2 * kQuantTileRows : kQuantTileRows), grid);
  const int32_t copy_bytes = round_up(copy_tiles(kKind) * args.tile_bytes, 128);
  const int32_t x_stage_bytes = round_up(kRoundTiles * shares.x_rows * kRowBytes, 128);
  const Params params{
      .a = args,
      .scales = {.group = 1 << args.log2_group,
                 .codes = args.codes,
                 .scales = args.scales,
                 .has_zeros = args.has_zero_points},
      .shares = shares,
      .tiles = ceil_div(args.k, kQuantTileCols),
      .x_stage_bytes = x_stage_bytes,
      .x_stages = std::min(kMaxStages, kXBytes / x_stage_bytes),
      .copy_bytes = copy_bytes,
      .copies = std::min(kMaxCopies, (kSharedBytes - kExchangeBytes - kXBytes) / copy_bytes),
      .zero = 0};
  constexpr auto* kKernel = &unit_expert_kernel<kKind, kGates>;
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(grid));
  shape.block = dim3(kThreads);
  shape.shared_bytes = kSharedBytes;
  allow_shared_bytes<kKernel>(shape.shared_bytes);
  launch(stream, "sm90_unit_expert_gemm", shape, kKernel, params);
}

}  // namespace sm90_unit_detail

template <PackedKind kKind>
void sm90_unit_expert_gemm(Stream& stream, const ExpertGemmArgs& args, LinearEpilogue epilogue) {
  using namespace sm90_unit_detail;
  if (epilogue == LinearEpilogue::kSwiGlu) {
    launch_instance<kKind, true>(stream, args);
  } else {
    launch_instance<kKind, false>(stream, args);
  }
}

template void sm90_unit_expert_gemm<WR_KIND>(Stream& stream,
                                             const ExpertGemmArgs& args,
                                             LinearEpilogue epilogue);

}  // namespace warprow::cuda
