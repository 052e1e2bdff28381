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
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/large_m/sm90_large_outputs.cuh"
#include "kernels/linear/row_scales.cuh"

#include <algorithm>
#include <cuda_runtime.h>
#include <type_traits>

// Formula: as in linear.h, for any number of rows of x that are normalised, or half-normalised.
// Shapes: w bf16 [n, k]; x bf16 [m, k]; y bf16 or float32.
// Mapping: persistent clusters of two CTAs. A CTA has 128 rows of x and 64 to 256 rows of w, the two CTAs of
//   a cluster the same rows of w, of which each loads half for both (multicast). A producer thread fills a ring
//   of stages of 64 inputs by TMA. Two consumer warpgroups have 64 rows of x each (rows of x are wgmma's m, rows
//   of w its n). A SwiGLU tile has gate rows in its first half and their up rows in its second, so that a thread
//   holds both. Outputs go through shared memory to y by TMA while the next tile is multiplied; a sum is added
//   to y in L2. Maxima of outputs (kMax) are found in registers. Neighbouring tiles share operands in L2.
// Bytes moved: w once for each 256 rows of x, x once for each tile's rows of w, mostly from L2. The kernel
//   fills the ring with w before it waits for the preceding kernel.
// Numerics: float32 sums in the order of k; the parts of k in order. The order depends on k and the number of
//   parts alone. As sm90_bf16_gemm_small_m with an equal split, bit for bit.
// Preconditions: k and x_stride multiples of 8; w and x 16-byte aligned, rows of y too; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_large_detail {

constexpr int kRows = 128;  // of x in a CTA
constexpr int kConsumers = 256;
constexpr int kThreads = kConsumers + 128;  // setmaxnreg counts whole warpgroups
constexpr int kXBytes = kRows * 128;
constexpr int kNeighbours = 8;  // pairs of tiles of x that take a tile of w one after the other

constexpr int kCluster = 2;

// Whether sums and parts of a tile take nearly all registers.
template <int kCols, bool kParts>
constexpr bool kMany = kCols == 192 && kParts;

template <int kCols>
struct Sizes {
  static constexpr int kStageBytes = kXBytes + kCols * 128;
  static constexpr int kBoxes = 2;  // of a warpgroup's outputs
  static constexpr int kStages = std::min(8, 194 * 1024 / kStageBytes);
  static constexpr int kStagingAt = kStages * kStageBytes;
  static constexpr size_t kSharedBytes = kStagingAt + 2 * kBoxes * kBoxBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  Sm90GemmArgs a;
  int32_t pairs;      // of tiles of x: the tiles of a cluster
  int32_t col_tiles;  // of w
  int32_t chunks;
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

// The producer, one lane: loads the tiles of w and x.
template <LinearEpilogue kEpilogue, int kCols>
struct Producer {
  using S = Sizes<kCols>;
  const Params& p;
  const CUtensorMap& x_map;
  const CUtensorMap& w_map;
  int rank;

  __device__ void load_w(const typename S::Ring& ring, const Tile& tile, int step) const {
    const int row = kEpilogue == LinearEpilogue::kSwiGlu
                        ? tile.col * (kCols / 2) + rank * (p.a.n / 2)
                        : tile.col * kCols + rank * (kCols / 2);
    barrier_arrive_expecting(ring.full(), S::kStageBytes);
    tma_load_2d_to_cluster(ring.data + ring.stage * S::kStageBytes + kXBytes + rank * (kCols * 64),
                           w_map,
                           ring.full(),
                           step * 64,
                           row,
                           3);
  }

  __device__ void run(typename S::Ring ring) const {
    const int steps = (p.a.k + 63) / 64;
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
        tma_load_2d(ring.data + ring.stage * S::kStageBytes, x_map, ring.full(), step * 64, x_row);
      }
    }
  }
};

// A consumer warpgroup: 64 rows of the CTA's tile.
template <LinearEpilogue kEpilogue, bool kF32, int kCols, bool kParts>
class Consumer {
 public:
  using S = Sizes<kCols>;
  using Outputs = std::conditional_t<kEpilogue == LinearEpilogue::kMax,
                                     LargeMaxima<kCols>,
                                     LargeOutputs<kEpilogue, kF32, kCols, S::kBoxes, NoWScales>>;
  __device__ Consumer(
      const Params& p, const CUtensorMap& y_map, uint32_t data, int rank, uint32_t own_barriers)
      : p_(p),
        outputs_(
            p.a,
            y_map,
            {},
            static_cast<int>(threadIdx.x) / 128,
            data + S::kStagingAt + static_cast<int>(threadIdx.x) / 128 * (S::kBoxes * kBoxBytes)),
        group_(static_cast<int>(threadIdx.x) / 128),
        warp_(static_cast<int>(threadIdx.x) % 128 / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        leads_(threadIdx.x % 128 == 0),
        rank_(rank),
        own_barriers_(own_barriers),
        peer_barriers_(remote_address(own_barriers, rank ^ 1)) {}

  __device__ void run(typename S::Ring ring) {
    const int num_tiles = p_.pairs * p_.col_tiles;
    for (int index = blockIdx.x / kCluster; index < num_tiles; index += gridDim.x / kCluster) {
      const Tile tile = tile_at(p_, index);
      row_ = (2 * tile.pair + rank_) * kRows + group_ * 64;
      row_scales_.begin(p_.a, row_ + warp_ * 16 + lane_ / 4, p_.a.m - 1);
      float sum[kCols / 2];
      if constexpr (kParts) {
        float part[kCols / 2];
        const int steps = (p_.a.k + 63) / 64;
        multiply(ring, steps / p_.chunks, sum, true);
        for (int chunk = 1; chunk < p_.chunks; ++chunk) {
          const int first = steps * chunk / p_.chunks;
          multiply(ring, steps * (chunk + 1) / p_.chunks - first, part, false);
#pragma unroll
          for (int i = 0; i < kCols / 2; ++i) {
            sum[i] = __fadd_rn(sum[i], part[i]);
          }
        }
      } else {
        multiply(ring, (p_.a.k + 63) / 64, sum, true);
      }
      outputs_.write(row_, tile.col, row_scales_.finish(p_.a), sum);
    }
    outputs_.wait();
  }

 private:
  static constexpr int kStageBytes = S::kStageBytes;
  static constexpr int kStepsOfRead = 4;  // whose products take as long as a read of memory
  __device__ void release(uint32_t empty) const {
    if (leads_) {
      barrier_arrive(empty);
      barrier_arrive_remote(peer_barriers_ + (empty - own_barriers_));
    }
  }

  // Multiplies `steps` stages of the ring. Rows' scales are found while a tile's first products run.
  __device__ void multiply(typename S::Ring& ring,
                           int steps,
                           float (&sum)[kCols / 2],
                           bool begins_tile) {
    uint32_t used = 0;
    wgmma_pin(sum);
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.full(), ring.phase);
      const uint32_t x = ring.data + ring.stage * kStageBytes + group_ * kBoxBytes;
      const uint32_t w = ring.data + ring.stage * kStageBytes + kXBytes;
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(sum,
              wgmma_operand(x + i * 32, 1024, 16),
              wgmma_operand(w + i * 32, 1024, 16),
              step + i > 0);
      }
      wgmma_commit();
      if (begins_tile && step % kStepsOfRead == kStepsOfRead - 1 && row_scales_.asked()) {
        row_scales_.advance(p_.a);
      }
      wgmma_wait<1>();
      if (step > 0) {
        release(used);
      }
      used = ring.empty();
    }
    wgmma_wait<0>();
    wgmma_pin(sum);
    if (steps > 0) {
      release(used);
    }
  }

  const Params& p_;
  Outputs outputs_;
  int group_;
  int warp_;  // of the warpgroup
  int lane_;
  bool leads_;
  int rank_;
  uint32_t own_barriers_;
  uint32_t peer_barriers_;
  int row_ = 0;  // of x: the warpgroup's first
  RowScales<2, kMany<kCols, kParts> ? 1 : 4> row_scales_;
};

template <LinearEpilogue kEpilogue, bool kF32, int kCols, bool kParts>
__global__ void __launch_bounds__(kThreads, 1) __cluster_dims__(kCluster, 1, 1)
    sm90_large_kernel(const __grid_constant__ Params p,
                      const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap y_map) {
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
      barrier_init(ring.barriers + (kStages + i) * 8, 4);  // the warpgroups of both CTAs
    }
    publish_barriers();
    fence_async_proxy();
  }
  __syncthreads();
  cluster_arrive();
  cluster_wait();
  if (threadIdx.x >= kConsumers) {
    lower_registers<kMany<kCols, kParts> ? 24 : 40>();
    if (threadIdx.x == kConsumers) {
      Producer<kEpilogue, kCols>{p, x_map, w_map, rank}.run(ring);
    }
  } else {
    raise_registers<kMany<kCols, kParts> ? 240 : 232>();
    pdl_wait();
    Consumer<kEpilogue, kF32, kCols, kParts>(p, y_map, data, rank, ring.barriers).run(ring);
  }
  __syncthreads();
  cluster_arrive();  // the other CTA may still write to this one's memory and barriers
  cluster_wait();
#endif
}

template <LinearEpilogue kEpilogue, bool kF32, int kCols, bool kParts>
void launch_instance(Stream& stream, const Sm90GemmArgs& args, const Sm90LargePlan& plan) {
  using S = Sizes<kCols>;
  constexpr auto* kKernel = &sm90_large_kernel<kEpilogue, kF32, kCols, kParts>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const bool gate = kEpilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? args.n / 2 : args.n;
  const Params params{
      args, ceil_div(args.m, 2 * kRows), ceil_div(outputs, gate ? kCols / 2 : kCols), plan.chunks};
  const auto map = [](const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box) {
    return tensor_map<2>(data,
                         {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                         {static_cast<uint64_t>(stride) * 2},
                         {64, static_cast<uint32_t>(box)},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  };
  LaunchShape shape;
  const int32_t tiles = params.pairs * params.col_tiles;
  const int32_t clusters = std::min(stream.device().facts().num_sms / kCluster, tiles);
  shape.grid = dim3(static_cast<unsigned>(kCluster * clusters));
  shape.block = dim3(kThreads);
  shape.shared_bytes = S::kSharedBytes;
  shape.overlap_previous = plan.early_w;
  launch(stream,
         "sm90_large_gemm",
         shape,
         kKernel,
         params,
         map(args.x,
             args.k,
             static_cast<int64_t>(args.mapped_rows(kCluster * kRows)),
             args.x_stride,
             kRows),
         map(args.w, args.k, args.n, args.k, kCols / 2),
         Consumer<kEpilogue, kF32, kCols, kParts>::Outputs::map(args));
}

}  // namespace sm90_large_detail

template <LinearEpilogue kEpilogue, bool kF32>
void launch_sm90_large(Stream& stream, const Sm90GemmArgs& args, const Sm90LargePlan& plan) {
  using namespace sm90_large_detail;
  const auto launch = [&]<int kCols, bool kParts> {
    launch_instance<kEpilogue, kF32, kCols, kParts>(stream, args, plan);
  };
  if constexpr (kEpilogue != LinearEpilogue::kMax) {
    if (plan.chunks > 1) {
      switch (plan.cols) {
        case 64:
          return launch.template operator()<64, true>();
        case 128:
          return launch.template operator()<128, true>();
        default:
          return launch.template operator()<192, true>();
      }
    }
  }
  if constexpr (!kF32) {
    if (plan.cols == 64) {
      return launch.template operator()<64, false>();
    }
    if (plan.cols == 96) {
      return launch.template operator()<96, false>();
    }
  }
  switch (plan.cols) {
    case 128:
      return launch.template operator()<128, false>();
    case 192:
      return launch.template operator()<192, false>();
    default:
      return launch.template operator()<256, false>();
  }
}

template void launch_sm90_large<WR_EPILOGUE, WR_F32>(Stream& stream,
                                                     const Sm90GemmArgs& args,
                                                     const Sm90LargePlan& plan);

}  // namespace warprow::cuda
