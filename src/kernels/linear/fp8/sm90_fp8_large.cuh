// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_f8.cuh"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/sm90_fp8_large.h"
#include "kernels/linear/large_m/sm90_large_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as sm90_fp8_gemm.cuh, for any number of rows of x.
// Shapes: w in units (fp8_tiles.h); x e4m3 [m, k] with scales (F8Rows); y bf16 or float32.
// Mapping: as sm90_large_gemm.cuh: persistent clusters of two CTAs, each with 128 rows of x, and both with the same 128 or 192
//   rows of w, of which each loads half for both. A stage has 128 inputs. A warpgroup multiplies its 64 rows of x with all rows
//   of w, from zero, and adds the products to its sums while the other warpgroup multiplies.
// Bytes moved: w once for each 256 rows of x, x once for each 128 or 192 rows of w, mostly from L2. The kernel fills the ring
//   with w before it waits for the preceding kernel.
// Numerics: as sm90_fp8_gemm.cuh with an equal number of parts, bit for bit.
// Preconditions: k a multiple of 8, n of 16; x 16-byte aligned, rows of y too; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_fp8_large_detail {

using namespace sm90_large_detail;

constexpr int kRows = 128;  // of x in a CTA
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;  // setmaxnreg counts whole warpgroups
constexpr int kXBytes = kRows * kFp8TileCols;
constexpr int kNeighbours = 8;  // pairs of tiles of x that take a tile of w one after the other
constexpr int kCluster = 2;

// A stage: x, w, then with groups the scales of x's rows and of w's.
template <int kCols>
struct Sizes {
  static constexpr bool kMayGroup = kCols == 128;
  static constexpr int kWBytes = kCols * kFp8TileCols;
  static constexpr int kXScalesAt = kXBytes + kWBytes;
  static constexpr int kWScalesAt = kXScalesAt + kRows * 4;
  static constexpr int kStageBytes = kXBytes + kWBytes + (kMayGroup ? 1024 : 0);
  static constexpr int kStages = kCols == 128 ? 5 : 4;
  static constexpr int kBoxes = kCols == 128 ? 2 : 4;  // of a warpgroup's outputs
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr size_t kSharedBytes = kStagingAt + 2 * kBoxes * kBoxBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  Sm90GemmArgs a;
  F8Rows x;
  int64_t unit_bytes;
  int32_t pairs;      // of tiles of x: the tiles of a cluster
  int32_t col_tiles;  // of w
  int32_t parts;
  bool grouped;
};

struct Tile {
  int pair;
  int col;
};

__device__ __forceinline__ Tile tile_at(const Params& p, int index) {
  const int of_group = kNeighbours * p.col_tiles;
  const int first = index / of_group * kNeighbours;
  const int height = min(kNeighbours, p.pairs - first);
  const int in_group = index % of_group;
  return {first + in_group % height, in_group / height};
}

struct Maps {
  CUtensorMap x;
  CUtensorMap w;         // [units][tiles][a tile, as doubles]
  CUtensorMap w_scales;  // of groups: [units][tiles][16]
  CUtensorMap y;
};

// The producer, one lane.
template <LinearEpilogue kEpilogue, int kCols>
struct Producer {
  using S = Sizes<kCols>;
  const Params& p;
  const Maps& maps;
  int rank;

  __device__ void load_w(const typename S::Ring& ring, const Tile& tile, int step) const {
    const int row = kEpilogue == LinearEpilogue::kSwiGlu
                        ? tile.col * (kCols / 2) + rank * (p.a.n / 2)
                        : tile.col * kCols + rank * (kCols / 2);
    const bool grouped = S::kMayGroup && p.grouped;
    barrier_arrive_expecting(ring.full(),
                             kXBytes + S::kWBytes + (grouped ? (kRows + kCols) * 4 : 0));
    const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
    tma_load_3d_to_cluster(stage + kXBytes + rank * (S::kWBytes / 2),
                           maps.w,
                           ring.full(),
                           step,
                           row / kFp8UnitRows,
                           3);
    if (grouped) {
      tma_load_3d_to_cluster(stage + S::kWScalesAt + rank * (kCols * 2),
                             maps.w_scales,
                             ring.full(),
                             step,
                             row / kFp8UnitRows,
                             3);
    }
  }
  __device__ void load_x(const typename S::Ring& ring, int x_row, int step) const {
    const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
    tma_load_2d(stage, maps.x, ring.full(), step * kFp8TileCols, x_row);
    if (S::kMayGroup && p.grouped) {
      bulk_load(
          stage + S::kXScalesAt,
          p.x.group_scales + step * p.x.group_stride + min(x_row, (p.a.m - 1) / kRows * kRows),
          kRows * 4,
          ring.full(),
          read_again());
    }
  }

  __device__ void run(typename S::Ring ring) const {
    const int steps = fp8_tiles_of(p.a.k);
    const int num_tiles = p.pairs * p.col_tiles;
    int index = blockIdx.x / kCluster;
    int early = 0;  // steps whose w is on its way
    for (typename S::Ring at = ring; index < num_tiles && early < min(S::kStages, steps);
         ++early, at.next()) {
      load_w(at, tile_at(p, index), early);
    }
    pdl_release();
    pdl_wait();
    for (; index < num_tiles; index += gridDim.x / kCluster) {
      const Tile tile = tile_at(p, index);
      const int x_row = (2 * tile.pair + rank) * kRows;
      for (int step = 0; step < steps; ++step, ring.next()) {
        if (early > 0) {
          --early;
        } else {
          barrier_wait(ring.empty(), ring.phase ^ 1);
          load_w(ring, tile, step);
        }
        load_x(ring, x_row, step);
      }
    }
  }
};

struct UnitScales {
  static constexpr bool kAny = true;
  const std::byte* first;  // null: ones
  int64_t unit_bytes;
  // row: even.
  [[nodiscard]] __device__ float2 two_at(int row) const {
    return first == nullptr
               ? float2{1.0F, 1.0F}
               : __ldg(reinterpret_cast<const float2*>(first + row / kFp8UnitRows * unit_bytes) +
                       row % kFp8UnitRows / 2);
  }
};

// Scales of a stage with groups: of a thread's two rows of x, and of the rows of w.
class GroupScales {
 public:
  using S = Sizes<128>;

  // row: of x in the CTA's tile.
  __device__ __forceinline__ void load(uint32_t stage, int row, int lane) {
    x_[0] = __uint_as_float(load_shared(stage + S::kXScalesAt + row * 4));
    x_[1] = __uint_as_float(load_shared(stage + S::kXScalesAt + row * 4 + 32));
    const uint32_t of_w = stage + S::kWScalesAt;
    const uint4 four = load_shared_four(of_w + lane * 16);
    const uint32_t first = load_shared(of_w + lane / 16 * 256);
    const bool alike = four.x == first && four.y == first && four.z == first && four.w == first;
    alike_[0] = load_shared(of_w);
    alike_[1] = load_shared(of_w + 256);
    pairs_ = __all_sync(~0U, alike) != 0 ? 0 : of_w + lane % 4 * 8;
  }

  // In blocks of 128 rows of w, which most checkpoints have, half of a tile has one scale.
  [[nodiscard]] __device__ bool are_alike() const { return pairs_ == 0; }

  // sum += scaled products.
  template <int kProducts>
  __device__ __forceinline__ void add_alike(const float (&product)[kProducts],
                                            float (&sum)[kProducts]) const {
#pragma unroll
    for (int i = 0; i < kProducts; ++i) {
      const float of_w = __uint_as_float(alike_[i / (kProducts / 2)]);
      sum[i] = __fmaf_rn(product[i], __fmul_rn(of_w, x_[i % 4 / 2]), sum[i]);
    }
  }
  template <int kProducts>
  __device__ __forceinline__ void add(const float (&product)[kProducts],
                                      float (&sum)[kProducts]) const {
#pragma unroll
    for (int i = 0; i < kProducts / 4; ++i) {
      const uint2 pair = load_shared_two(pairs_ + i * 32);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const float of_w = __uint_as_float(j % 2 == 0 ? pair.x : pair.y);
        float& to = sum[i * 4 + j];
        to = __fmaf_rn(product[i * 4 + j], __fmul_rn(of_w, x_[j / 2]), to);
      }
    }
  }

 private:
  float x_[2];
  uint32_t alike_[2];  // of the first 64 rows of w, and of the last
  uint32_t pairs_;  // where the lane's first two are in shared memory; 0: all of a half are alike
};

// A consumer warpgroup: 64 rows of the CTA's tile.
template <LinearEpilogue kEpilogue, bool kF32, int kCols>
class Consumer {
 public:
  using S = Sizes<kCols>;
  using Outputs = LargeOutputs<kEpilogue, kF32, kCols, S::kBoxes, UnitScales>;
  __device__ Consumer(
      const Params& p, const CUtensorMap& y_map, uint32_t data, int rank, uint32_t own_barriers)
      : p_(p),
        group_(warp_uniform(static_cast<int>(threadIdx.x) / 128)),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        leads_(threadIdx.x % 128 == 0),
        rank_(rank),
        own_barriers_(own_barriers),
        peer_barriers_(remote_address(own_barriers, rank ^ 1)),
        outputs_(p.a,
                 y_map,
                 {p.grouped ? nullptr : static_cast<const std::byte*>(p.a.w) + fp8_scales_at(p.a.k),
                  p.unit_bytes},
                 group_,
                 data + S::kStagingAt + group_ * (S::kBoxes * kBoxBytes)) {}

  __device__ void run(typename S::Ring ring) {
    const int num_tiles = p_.pairs * p_.col_tiles;
    const int steps = fp8_tiles_of(p_.a.k);
    for (int index = blockIdx.x / kCluster; index < num_tiles; index += gridDim.x / kCluster) {
      const Tile tile = tile_at(p_, index);
      const int row = (2 * tile.pair + rank_) * kRows + group_ * 64;
      const float scales[2] = {token_scale(row, 0), token_scale(row, 1)};
      float sum[kCols / 2];
      if constexpr (kCols == 128) {
        for (int of = 0; of < p_.parts; ++of) {
          float part[kCols / 2];
          multiply(ring, steps * (of + 1) / p_.parts - steps * of / p_.parts, part);
#pragma unroll
          for (int i = 0; i < kCols / 2; ++i) {
            sum[i] = of == 0 ? part[i] : __fadd_rn(sum[i], part[i]);
          }
        }
      } else {
        multiply(ring, steps, sum);
      }
      outputs_.write(row, tile.col, scales, sum);
    }
    outputs_.wait();
  }

 private:
  [[nodiscard]] __device__ float token_scale(int row, int half) const {
    const int at = row + warp_ * 16 + half * 8 + lane_ / 4;
    return at < p_.a.m ? p_.x.token_scales[at] : 0.0F;
  }

  // Every warp reads scales of a stage itself, so with them every warp releases it.
  __device__ void release(uint32_t empty) const {
    if (S::kMayGroup && p_.grouped ? lane_ == 0 : leads_) {
      barrier_arrive(empty);
      barrier_arrive_remote(peer_barriers_ + (empty - own_barriers_));
    }
  }

  __device__ __forceinline__ void multiply(typename S::Ring& ring,
                                           int steps,
                                           float (&sum)[kCols / 2]) const {
    const bool grouped = S::kMayGroup && p_.grouped;
#pragma unroll
    for (int i = 0; i < kCols / 2; ++i) {
      sum[i] = 0.0F;
    }
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.full(), ring.phase);
      const uint32_t stage = ring.data + ring.stage * S::kStageBytes;
      const uint64_t of_x = wgmma_operand(stage + group_ * kBoxBytes, 1024, 16);
      const uint64_t of_w = wgmma_operand(stage + kXBytes, 1024, 16);
      float product[kCols / 2];
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma_f8(product, further_operand(of_x, i * 32), further_operand(of_w, i * 32), i > 0);
      }
      wgmma_commit();
      GroupScales scales;
      if (grouped) {
        scales.load(stage, group_ * 64 + warp_ * 16 + lane_ / 4, lane_);
        fence_async_proxy();  // scales were read by ld.shared
      }
      wgmma_wait<0>();
      wgmma_pin(product);
      __syncwarp();
      if (!grouped) {
        release(ring.empty());
#pragma unroll
        for (int i = 0; i < kCols / 2; ++i) {
          sum[i] = __fadd_rn(sum[i], product[i]);
        }
      } else if (scales.are_alike()) {
        release(ring.empty());
        scales.add_alike(product, sum);
      } else {
        scales.add(product, sum);
        fence_async_proxy();
        __syncwarp();
        release(ring.empty());
      }
    }
  }

  const Params& p_;
  int group_;
  int warp_;  // of the warpgroup
  int lane_;
  bool leads_;
  int rank_;
  uint32_t own_barriers_;
  uint32_t peer_barriers_;
  Outputs outputs_;
};

template <LinearEpilogue kEpilogue, bool kF32, int kCols>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    sm90_fp8_large_kernel(const __grid_constant__ Params p, const __grid_constant__ Maps maps) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kCols>;
  extern __shared__ unsigned char memory[];
  constexpr int kStages = S::kStages;
  __shared__ uint64_t barriers[2 * kStages];
  const uint32_t data = (shared_address(memory) + 1023) & ~1023U;
  const typename S::Ring ring{data, shared_address(barriers), kStages};
  const int rank = cluster_rank();
  if (threadIdx.x == 0) {
    for (int i = 0; i < kStages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      // The warpgroups of both CTAs, or their warps.
      barrier_init(ring.barriers + (kStages + i) * 8, S::kMayGroup && p.grouped ? 16 : 4);
    }
    publish_barriers();
    fence_async_proxy();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x >= kConsumers) {
    lower_registers<40>();
    if (threadIdx.x == kConsumers) {
      Producer<kEpilogue, kCols>{p, maps, rank}.run(ring);
    }
  } else {
    raise_registers<232>();
    pdl_wait();
    Consumer<kEpilogue, kF32, kCols>(p, maps.y, data, rank, ring.barriers).run(ring);
  }
  __syncthreads();
  cluster_arrive();  // the other CTA may still write to this one's memory and barriers
  cluster_wait();
#endif
}

template <LinearEpilogue kEpilogue, bool kF32, int kCols>
void launch_instance(Stream& stream,
                     const Sm90Fp8Args& args,
                     const PackedWeight& weight,
                     const Sm90Fp8LargePlan& plan) {
  using S = Sizes<kCols>;
  constexpr auto* kKernel = &sm90_fp8_large_kernel<kEpilogue, kF32, kCols>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const Sm90GemmArgs& a = args.a;
  const bool gate = kEpilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? a.n / 2 : a.n;
  const bool grouped = weight.inputs == F8Inputs::kGroup;
  const Params params{a,
                      args.x,
                      fp8_unit_bytes(a.k, grouped),
                      ceil_div(a.m, 2 * kRows),
                      ceil_div(outputs, gate ? kCols / 2 : kCols),
                      plan.parts,
                      grouped};
  const auto units = static_cast<uint64_t>(a.n / kFp8UnitRows);
  const auto tiles = static_cast<uint64_t>(fp8_tiles_of(a.k));
  const auto unit_bytes = static_cast<uint64_t>(params.unit_bytes);
  constexpr uint32_t kHalfUnits = kCols / 2 / kFp8UnitRows;
  const auto* w = static_cast<const std::byte*>(a.w);
  Maps maps;
  maps.x = tensor_map<2>(args.x.numbers,
                         {static_cast<uint64_t>(a.k), static_cast<uint64_t>(f8_padded_rows(a.m))},
                         {static_cast<uint64_t>(args.x.pitch)},
                         {kFp8TileCols, kRows},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_DATA_TYPE_UINT8);
  maps.w = tensor_map<3>(w,
                         {kFp8TileBytes / 8, tiles, units},
                         {kFp8TileBytes, unit_bytes},
                         {kFp8TileBytes / 8, 1, kHalfUnits},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                         CU_TENSOR_MAP_SWIZZLE_NONE);
  maps.w_scales = tensor_map<3>(w + (grouped ? fp8_scales_at(a.k) : 0),
                                {16, tiles, units},
                                {64, unit_bytes},
                                {16, 1, kHalfUnits},
                                CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                CU_TENSOR_MAP_SWIZZLE_NONE);
  maps.y = Consumer<kEpilogue, kF32, kCols>::Outputs::map(a);
  LaunchShape shape;
  const int32_t num_tiles = params.pairs * params.col_tiles;
  const int32_t clusters = std::min(stream.device().facts().num_sms / kCluster, num_tiles);
  shape.grid = dim3(static_cast<unsigned>(kCluster * clusters));
  shape.block = dim3(kThreads);
  shape.shared_bytes = S::kSharedBytes;
  launch(stream, "sm90_fp8_large", shape, kKernel, params, maps);
}

}  // namespace sm90_fp8_large_detail

template <LinearEpilogue kEpilogue, bool kF32>
void launch_sm90_fp8_large(Stream& stream,
                           const Sm90Fp8Args& args,
                           const PackedWeight& weight,
                           const Sm90Fp8LargePlan& plan) {
  using namespace sm90_fp8_large_detail;
  if (plan.cols == 192) {
    return launch_instance<kEpilogue, kF32, 192>(stream, args, weight, plan);
  }
  launch_instance<kEpilogue, kF32, 128>(stream, args, weight, plan);
}

template void launch_sm90_fp8_large<WR_EPILOGUE, WR_F32>(Stream& stream,
                                                         const Sm90Fp8Args& args,
                                                         const PackedWeight& weight,
                                                         const Sm90Fp8LargePlan& plan);

}  // namespace warprow::cuda
