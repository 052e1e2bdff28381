// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/quant/quant_tiles_map.h"
#include "kernels/linear/quant/shared_tile.cuh"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm90_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in linear.h with a quantised w, for any number of rows of x that are normalised, or half-normalised. A weight
//   is the bf16 quant_weight (quant_tiles.h).
// Shapes: w in tiles (quant_tiles.h); x bf16 [m, k]; y bf16 or float32.
// Mapping: as sm90_gemm.cuh. A stage has 128 inputs: x and tiles of w, by TMA. A warp turns its 16 rows into bf16 in registers,
//   which are the operand A of mma, or of wgmma with more than 8 rows.
// Bytes moved: w once, for more blocks mostly from L2; x from L2 once a tile. The kernel fills the ring with w before it
//   waits for the preceding kernel.
// Numerics: those of sm90_gemm.cuh with the same weights in bf16: float32 sums in the order of k; the parts of k in order.
//   The order depends on n, k and the plan's split alone.
// Preconditions: k and x_stride multiples of 8; x 16-byte aligned; gated rows a multiple of 16; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_quant_detail {

using namespace sm90_gemm_detail;
using sm90_gemm_detail::Ring;

struct QuantParams {
  Params p;
  int32_t stage_bytes;
  int32_t tile_bytes;
  ScaleGroups scales;
  int32_t pieces;  // of a tile in Maps::w
  bool x_blocks;   // Maps::x has blocks of 64 inputs, of which a copy moves two
  uint32_t zero;   // 0, which the compiler does not know
};
struct Maps {
  CUtensorMap x;
  CUtensorMap w;
};

constexpr int kStageInputs = kQuantTileCols;
// Whether a warp of its own finds the scales of rows, so that products need not wait for them. With more columns an SM does not have
// registers enough for three CTAs with such a warp.
template <int kCols>
constexpr bool kHasScaleWarp = kCols == 8;
template <int kCols, int kGroups>
constexpr int kAllThreads = Sizes<kCols, kGroups>::kThreads + (kHasScaleWarp<kCols> ? 32 : 0);
// Whether the room for other CTAs' sums is in the ring (sm90_quant_parts_at).
template <int kCols>
constexpr bool kSumsShareRing = kCols == 128;

// A thread: loads w of a step.
template <int kCols, int kGroups>
__device__ __forceinline__ void load_stage_of_w(const QuantParams& q,
                                                const Maps& maps,
                                                const Place& at,
                                                const Ring& ring,
                                                int step,
                                                uint64_t policy) {
  const int units = q.p.a.epilogue == LinearEpilogue::kSwiGlu ? kGroups * 2 : kGroups * 4;
  tma_load_4d(ring.data + ring.stage * q.stage_bytes + kCols * 256,
              maps.w,
              ring.full(),
              0,
              (at.first + step) * q.pieces,
              at.tile * units,
              0,
              policy);
}

// The consumer warps: fill the ring with w for the first time, each a part of it, since a thread takes 60 ns for a copy.
template <int kCols, int kGroups>
__device__ __forceinline__ void fill_with_w(
    const QuantParams& q, const Maps& maps, const Place& at, Ring ring, uint64_t policy) {
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const int steps = min(ring.stages, at.num_steps);
  if (elect_one()) {
    for (int step = warp; step < steps; step += kGroups * 4) {
      ring.stage = step;
      load_stage_of_w<kCols, kGroups>(q, maps, at, ring, step, policy);
    }
  }
}

// The producer, one warp: loads x, and w once a stage is free again.
template <int kCols, int kGroups>
struct Producer {
  const QuantParams& q;
  const Maps& maps;
  const Place& at;
  int lane;
  int bytes;  // of a stage

  __device__ Producer(const QuantParams& params, const Maps& of, const Place& place, int of_lane)
      : q(params),
        maps(of),
        at(place),
        lane(of_lane),
        bytes(kGroups * 4 * params.tile_bytes + kCols * kStageInputs * 2) {}
  __device__ void load_x(const Ring& ring, int step) const {
    if (lane == 0) {
      const uint32_t to = ring.data + ring.stage * q.stage_bytes;
      const int col = (at.first + step) * kStageInputs;
      if (q.x_blocks) {
        tma_load_3d(to, maps.x, ring.full(), 0, at.block_row, col / 64);
        return;
      }
      tma_load_3d(to, maps.x, ring.full(), col, at.block_row, 0);
      tma_load_3d(to + kCols * 128, maps.x, ring.full(), col + 64, at.block_row, 0);
    }
  }
  // For the first fill. The bytes may have begun to come.
  __device__ void expect(Ring ring) const {
    const int steps = min(ring.stages, at.num_steps);
    if (lane < steps) {
      ring.stage = lane;
      barrier_arrive_expecting(ring.full(), bytes);
    }
  }
  // Loads x for the first fill, then whole stages as they become free.
  __device__ void run(Ring ring, uint64_t policy) const {
    for (int step = 0; step < at.num_steps; ++step, ring.next()) {
      if (step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        if (lane == 0) {
          barrier_arrive_expecting(ring.full(), bytes);
          load_stage_of_w<kCols, kGroups>(q, maps, at, ring, step, policy);
        }
      }
      load_x(ring, step);
    }
  }
};

// A warpgroup's products with 64 rows of w.
template <PackedKind kKind, int kCols>
class Multiplier {
 public:
  using Numbers = QuantNumbers<kKind>;
  // For few rows each warp uses mma on its own, so it can dequantise the next weights before its products are complete. mma
  // and wgmma have the same bits.
  static constexpr bool kByWarps = kCols == 8;
  static constexpr bool kOverlaps = kCols == 32 || kCols == 64;
  // Of tables, which take more instructions, a warp reads the next tile's numbers before it is done with the current tile. With other
  // numbers that was slower (docs/experiments/linears_cuda.md).
  static constexpr bool kReadsAhead = kKind == PackedKind::kTable;
  // Steps of 16 inputs whose numbers are in registers at once, with 128 columns.
  static constexpr int kSteps = 4;

  __device__ explicit Multiplier(const QuantParams& q)
      : q_(q),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32) {}

  __device__ void run(const Place& at, const Ring& ring, float (&sum)[kCols / 2]) {
    with_scale_groups<kKind>(q_.scales, [&]<typename Tile, int kGroupSteps> {
      typename Tile::Scale scales[2];
      set_codes<kKind>(q_.scales.codes, 0, scales[0]);
      set_codes<kKind>(q_.scales.codes, 1, scales[1]);
      run<Tile, kGroupSteps>(at, ring, scales, sum);
    });
    if constexpr (Numbers::kTimes != 1.0F) {
#pragma unroll
      for (float& v : sum) {
        v = __fmul_rn(v, Numbers::kTimes);
      }
    }
  }

 private:
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void run(const Place& at,
                                      Ring ring,
                                      typename Tile::Scale (&scales)[2],
                                      float (&sum)[kCols / 2]) {
    if constexpr (kByWarps) {
      run_by_warps<Tile, kGroupSteps>(at, ring, scales, sum);
    } else if constexpr (kOverlaps) {
      run_overlapped<Tile, kGroupSteps>(at, ring, scales, sum);
    } else {
      wgmma_pin(sum);
      for (int step = 0; step < at.num_steps; ++step, ring.next()) {
        barrier_wait(ring.full(), ring.phase);
        const uint32_t x = ring.data + ring.stage * q_.stage_bytes;
#pragma unroll
        for (int first = 0; first < 8; first += kSteps) {
          multiply<kGroupSteps>(Tile(w_of(x), lane_, q_.scales.has_zeros), x, first, scales, sum);
        }
        release(ring);
      }
      wgmma_pin(sum);
    }
  }

  // Half of a tile's weights, kHalf 0 first.
  template <int kHalf, int kGroupSteps, typename Tile>
  __device__ __forceinline__ static void decode_half(const Tile& tile,
                                                     typename Tile::Words& words,
                                                     typename Tile::Scale (&scales)[2],
                                                     uint32_t (&d)[4][4]) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int step = kHalf * 4 + i;
      if (step % kGroupSteps == 0) {
        tile.read_scales(step / kGroupSteps, scales);
      }
      tile.read_for(words, step, 0);
      Tile::decode(words, step, scales, d[i]);
    }
  }

  // All tiles of a warpgroup. While products with half a tile run, the next half is dequantised.
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void run_overlapped(const Place& at,
                                                 Ring ring,
                                                 typename Tile::Scale (&scales)[2],
                                                 float (&sum)[kCols / 2]) {
    // Makes the compiler keep these values in uniform registers.
    ring.data = warp_uniform(ring.data);
    ring.barriers = warp_uniform(ring.barriers);
    const int num_steps = warp_uniform(at.num_steps);
    uint32_t d[2][4][4];
    typename Tile::Words words = {};
    const auto tile_of = [&](const Ring& r) {
      barrier_wait(r.full(), r.phase);
      return Tile(w_of(r.data + r.stage * q_.stage_bytes), lane_, q_.scales.has_zeros);
    };
    const auto multiply_half = [&](uint64_t x, int half) {
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        wgmma(sum, d[half][i], further_operand(x, half * (kCols * 128) + i * 32));
      }
      wgmma_commit();
    };
    if (num_steps <= 0) {
      return;
    }
    Tile tile = tile_of(ring);
    decode_half<0, kGroupSteps>(tile, words, scales, d[0]);
    wgmma_pin(sum);
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      const uint64_t x = wgmma_operand(ring.data + ring.stage * q_.stage_bytes, 1024, 16);
      multiply_half(x, 0);
      decode_half<1, kGroupSteps>(tile, words, scales, d[1]);
      wgmma_wait<0>();
      multiply_half(x, 1);
      Ring behind = ring;
      behind.next();
      if (step + 1 < num_steps) {
        tile = tile_of(behind);
        decode_half<0, kGroupSteps>(tile, words, scales, d[0]);
      }
      wgmma_wait<0>();
      release(ring);
      ring = behind;
    }
    wgmma_pin(sum);
  }

  // last: a register of the warp's last load from the stage. The address of the arrive takes it, so the arrive waits for it, and loads
  // arrive in order. ptxas may issue a scale's load behind it: that takes some 30 cycles, TMA's write to the stage begins hundreds
  // later. A fence takes longer. With wgmma, wgmma_wait has waited for all reads.
  __device__ __forceinline__ void release(const Ring& ring, uint32_t last = 0) const {
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(ring.empty() + (kByWarps ? last & q_.zero : 0));
    }
  }
  [[nodiscard]] __device__ __forceinline__ uint32_t w_of(uint32_t x) const {
    return x + kCols * 256 + warp_ * q_.tile_bytes;
  }

  // All tiles of a warp.
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void run_by_warps(const Place& at,
                                               Ring ring,
                                               typename Tile::Scale (&scales)[2],
                                               float (&sum)[4]) {
    // Makes the compiler keep these values, else it computes them again for each tile.
    ring.data = warp_uniform(ring.data);
    ring.barriers = warp_uniform(ring.barriers);
    const int num_steps = warp_uniform(at.num_steps);
    const auto stage_of = [&](const Ring& r) { return r.data + r.stage * q_.stage_bytes; };
    const auto tile_at = [&](const Ring& r) {
      return Tile(w_of(stage_of(r)), lane_, q_.scales.has_zeros);
    };
    typename Tile::Words next;
    if (kReadsAhead && num_steps > 0) {
      barrier_wait(ring.full(), ring.phase);
      tile_at(ring).read(next);
    }
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      Ring behind = ring;
      behind.next();
      const auto read_next = [&] {
        if (kReadsAhead && step + 1 < num_steps) {
          barrier_wait(behind.full(), behind.phase);
          tile_at(behind).read(next);
        }
      };
      const Tile tile = tile_at(ring);
      typename Tile::Words words;
      if constexpr (kReadsAhead) {
        words = next;
      } else {
        barrier_wait(ring.full(), ring.phase);
      }
      release(ring,
              multiply_by_warp<kGroupSteps>(tile, words, stage_of(ring), scales, sum, read_next));
      ring = behind;
    }
  }

  // A warp's 16 rows, two steps at a time. words: read already if kReadsAhead. in_the_middle: called between two steps. Returns a
  // register that is known when the tile's last loads have arrived.
  template <int kGroupSteps, typename Tile, typename InTheMiddle>
  __device__ __forceinline__ uint32_t multiply_by_warp(const Tile& tile,
                                                       typename Tile::Words& words,
                                                       uint32_t x,
                                                       typename Tile::Scale (&scales)[2],
                                                       float (&sum)[4],
                                                       const InTheMiddle& in_the_middle) {
    uint32_t last = 0;
    const uint32_t lane_at =
        x + lane_ % 8 * 128 + static_cast<uint32_t>(lane_ / 8 ^ lane_ % 8) * 16;
#pragma unroll
    for (int step = 0; step < 8; step += 2) {
      if (step == 4) {
        in_the_middle();
      }
      const uint32_t at = (lane_at ^ step % 4 * 32U) + step / 4 * (kCols * 128);
      if (step % kGroupSteps == 0) {
        tile.read_scales(step / kGroupSteps, scales);
      }
      if constexpr (!kReadsAhead) {
        tile.read_for(words, step, 0);
      }
      uint32_t d[2][4];
      Tile::decode(words, step, scales, d[0]);
      if (kGroupSteps == 1) {
        tile.read_scales(step + 1, scales);
      }
      Tile::decode(words, step + 1, scales, d[1]);
      uint32_t b[4];
      load_matrices(b, at);
      mma_bf16(sum, d[0], b[0], b[1]);
      mma_bf16(sum, d[1], b[2], b[3]);
      last = b[3];
    }
    return last;
  }

  // A warpgroup's 64 rows. kGroupSteps: steps of a group.
  template <int kGroupSteps, typename Tile>
  __device__ __forceinline__ void multiply(const Tile& tile,
                                           uint32_t x,
                                           int first,
                                           typename Tile::Scale (&scales)[2],
                                           float (&sum)[kCols / 2]) {
    uint32_t d[kSteps][4];
    typename Tile::Words words = {};
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = first + i;
      if (i == 0 || step % kGroupSteps == 0) {
        tile.read_scales(step / kGroupSteps, scales);
      }
      tile.read_for(words, step, first);
      Tile::decode(words, step, scales, d[i]);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = first + i;
      wgmma(sum, d[i], wgmma_operand(x + step / 4 * (kCols * 128) + step % 4 * 32, 1024, 16));
    }
    wgmma_commit();
    // ptxas serialises wgmmas if registers of their operands are written while they run, and there are no others. So this waits
    // for them here; other warpgroups keep the tensor cores busy.
    wgmma_wait<0>();
  }

  const QuantParams& q_;
  int lane_;
  int warp_;
};

template <PackedKind kKind, int kCols, int kGroups>
__global__ void __launch_bounds__(kAllThreads<kCols, kGroups>, kCols <= 64 ? 3 : 1)
sm90_quant_kernel(const __grid_constant__ QuantParams q, const __grid_constant__ Maps maps) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kCols, kGroups>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxSm90GemmStages + 1];
  __shared__ float scales[kCols];
  const Params& p = q.p;
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Place at(p, kCols, kStageInputs);
  const Ring ring{shared_address(data), shared_address(barriers), p.stages};
  const uint32_t parts_barrier = ring.barriers + 2 * kMaxSm90GemmStages * 8;
  const bool alone = p.split == 1;
  bool produces = threadIdx.x >= S::kConsumers;
  bool finds_scales = false;
  if constexpr (kHasScaleWarp<kCols>) {
    const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
    produces = warp == S::kConsumers / 32;
    finds_scales = warp > S::kConsumers / 32;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
    if (lane == 0) {
      fetch_map(maps.w);
    }
    init_barriers(ring, 4 * kGroups, parts_barrier, lane);
  }
  __syncthreads();
  if (!alone) {
    cluster_arrive();
  }
  if (produces) {
    const Producer<kCols, kGroups> producer(q, maps, at, lane);
    producer.expect(ring);
    if (lane == 0) {
      fetch_map(maps.x);
      // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
      // ends after the kernels before it.
      pdl_release();
    }
    __syncwarp();
    pdl_wait();
    producer.run(ring, policy);
    __syncwarp();
    if (!alone) {
      cluster_wait();
      if constexpr (kSumsShareRing<kCols>) {
        cluster_arrive();
        cluster_wait();
      }
      cluster_arrive();
    }
  } else if (finds_scales) {
    leave_row_scales<S::kConsumers, kCols>(p, at, 0, scales);
    __syncwarp();
    if (!alone) {
      cluster_wait();
      cluster_arrive();
    }
  } else {
    Outputs<kCols, kGroups> outputs(p, at, data, scales);
    outputs.fetch_constants();
    fill_with_w<kCols, kGroups>(q, maps, at, ring, policy);
    __syncwarp();
    pdl_wait();
    outputs.fetch_old();
    if (!kHasScaleWarp<kCols> && p.a.squares != nullptr) {
      find_row_scales<S::kConsumers>(p, at, scales);
    }
    float sum[kCols / 2] = {};
    Multiplier<kKind, kCols>(q).run(at, ring, sum);
    named_sync(1, S::kConsumers);  // the ring is free: sums reuse its memory
    store_partial_sums<kCols, kGroups>(data, sum);
    if (p.split > 1) {
      fence_async_proxy();
      named_sync(1, S::kConsumers);
      cluster_wait();                         // until the others have their barriers
      if constexpr (kSumsShareRing<kCols>) {  // until others' rings are free too
        cluster_arrive();
        cluster_wait();
      }
      if (threadIdx.x == 0) {
        exchange_sums<kCols, kGroups>(p, at, ring.data, parts_barrier);
      }
      __syncwarp();
      barrier_wait(parts_barrier, 0);
      __syncwarp();
    } else {
      named_sync(1, S::kConsumers);
    }
    if (!alone) {
      cluster_arrive();
    }
    if constexpr (kHasScaleWarp<kCols>) {
      await_row_scales<S::kConsumers, kCols>(p);
    }
    outputs.finish();
    __syncwarp();
  }
  if (!alone) {  // others may still write to this CTA's barriers or copy its sums
    cluster_wait();
  }
#endif
}

}  // namespace sm90_quant_detail

template <PackedKind kKind, int kCols, int kGroups>
void launch_sm90_quant(Stream& stream,
                       const Sm90GemmArgs& args,
                       const PackedWeight& weight,
                       const Sm90QuantPlan& plan) {
  using S = sm90_gemm_detail::Sizes<kCols, kGroups>;
  constexpr auto* kKernel = &sm90_quant_detail::sm90_quant_kernel<kKind, kCols, kGroups>;
  const size_t shared_bytes = sm90_quant_shared_bytes(plan, weight);
  allow_shared_bytes<kKernel>(shared_bytes);
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? args.n / 2 : args.n;
  const int32_t tiles = ceil_div(outputs, gate ? S::kRows / 2 : S::kRows);
  sm90_quant_detail::QuantParams params{
      sm90_gemm_detail::params_of(
          args, kCols, plan.split, plan.stages, sm90_quant_parts_at(plan, weight)),
      sm90_quant_stage_bytes(plan, weight),
      quant_tile_bytes(weight),
      {weight.group, quant_codes(weight), quant_scales(weight), weight.has_zero_points},
      quant_tile_pieces(quant_tile_bytes(weight)),
      args.k % 64 == 0,
      0};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(tiles * params.p.blocks * plan.split));
  config.blockDim = dim3(sm90_quant_detail::kAllThreads<kCols, kGroups>);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  sm90_quant_detail::Maps maps{};
  const uint64_t rows = args.mapped_rows(kCols);
  const auto inputs = static_cast<uint64_t>(args.k);
  const uint64_t x_bytes = static_cast<uint64_t>(args.x_stride) * 2;
  const CUtensorMapL2promotion promotion = CU_TENSOR_MAP_L2_PROMOTION_L2_128B;
  maps.x = params.x_blocks ? tensor_map<3>(args.x,
                                           {64, rows, inputs / 64},
                                           {x_bytes, 128},
                                           {64, static_cast<uint32_t>(kCols), 2},
                                           promotion)
                           : tensor_map<3>(args.x,
                                           {inputs, rows, 1},
                                           {x_bytes, x_bytes},
                                           {64, static_cast<uint32_t>(kCols), 1},
                                           promotion);
  maps.w = quant_tiles_map(args.w,
                           params.tile_bytes,
                           args.k,
                           ceil_div<int64_t>(outputs, kQuantTileRows),
                           gate ? 2 : 1,
                           gate ? kGroups * 2 : kGroups * 4,
                           gate ? 2 : 1);
  WR_CUDA(cudaLaunchKernelEx(&config, kKernel, params, maps));
  as_cuda(stream).note_launch("sm90_quant_gemm");
}

template void launch_sm90_quant<WR_KIND, WR_COLS, 1>(Stream& stream,
                                                     const Sm90GemmArgs& args,
                                                     const PackedWeight& weight,
                                                     const Sm90QuantPlan& plan);
#if WR_COLS == 128
template void launch_sm90_quant<WR_KIND, WR_COLS, 3>(Stream& stream,
                                                     const Sm90GemmArgs& args,
                                                     const PackedWeight& weight,
                                                     const Sm90QuantPlan& plan);
#endif

}  // namespace warprow::cuda
