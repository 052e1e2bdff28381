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
#include "kernels/linear/quant/shared_tile.cuh"
#include "kernels/linear/quant/sm90_quant_gemm.h"
#include "kernels/linear/small_m/sm90_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in linear.h with a quantised w, for any number of rows of x that are normalised, or half-normalised. A weight
//   is the bf16 quant_weight (quant_tiles.h).
// Shapes: w in tiles (quant_tiles.h); x bf16 [m, k]; y bf16 or float32.
// Mapping: as sm90_gemm.cuh. A stage has 128 inputs: x, by TMA, and tiles of w, by a bulk copy for each 16 rows. A warp
//   turns its 16 rows into bf16 in registers, which are wgmma's operand A.
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
};

constexpr int kStageInputs = kQuantTileCols;
// Whether the room for other CTAs' sums is in the ring (sm90_quant_parts_at).
template <int kCols>
constexpr bool kSumsShareRing = kCols == 128;

// The producer, one warp: loads tiles of w and x.
template <int kCols, int kGroups>
struct Producer {
  static constexpr int kUnits = kGroups * 4;  // of 16 rows, in a CTA's tile
  const QuantParams& q;
  const CUtensorMap& x_map;
  const Place& at;
  int lane;
  const std::byte* from;  // the lane's tile of w, of the first step
  int bytes;              // of a stage of w

  __device__ Producer(const QuantParams& params,
                      const CUtensorMap& map,
                      const Place& place,
                      int of_lane)
      : q(params), x_map(map), at(place), lane(of_lane) {
    const Sm90GemmArgs& a = q.p.a;
    const bool gate = a.epilogue == LinearEpilogue::kSwiGlu;
    const int per_half = gate ? kUnits / 2 : kUnits;
    const int units = (gate ? a.n / 2 : a.n + 15) / 16;  // of a half
    const int unit = at.tile * per_half + lane % per_half;
    const bool mine = lane < kUnits && unit < units;
    const int row = unit + (lane >= per_half ? units : 0);
    const int tiles = (a.k + kStageInputs - 1) / kStageInputs;
    from =
        mine ? static_cast<const std::byte*>(a.w) + (int64_t{row} * tiles + at.first) * q.tile_bytes
             : nullptr;
    bytes = __popc(__ballot_sync(~0U, mine)) * q.tile_bytes;
  }
  __device__ void load_w(const Ring& ring, int step, uint64_t policy) const {
    if (lane == 0) {
      barrier_arrive_expecting(ring.full(), bytes + kCols * kStageInputs * 2);
    }
    __syncwarp();
    if (from != nullptr) {
      bulk_load(ring.data + ring.stage * q.stage_bytes + kCols * 256 + lane * q.tile_bytes,
                from + int64_t{step} * q.tile_bytes,
                q.tile_bytes,
                ring.full(),
                policy);
    }
  }
  __device__ void load_x(const Ring& ring, int step) const {
    if (lane == 0) {
      const uint32_t to = ring.data + ring.stage * q.stage_bytes;
      const int col = (at.first + step) * kStageInputs;
      tma_load_2d(to, x_map, ring.full(), col, at.block_row);
      tma_load_2d(to + kCols * 128, x_map, ring.full(), col + 64, at.block_row);
    }
  }
  // Fills the ring for the first time, with w only.
  __device__ void start(Ring ring, uint64_t policy) const {
    for (int step = 0; step < min(ring.stages, at.num_steps); ++step, ring.next()) {
      load_w(ring, step, policy);
    }
  }
  // Loads x for the first fill, then whole stages as they become free.
  __device__ void run(Ring ring, uint64_t policy) const {
    for (int step = 0; step < at.num_steps; ++step, ring.next()) {
      if (step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_w(ring, step, policy);
      }
      load_x(ring, step);
    }
  }
};

// A warpgroup's products with 64 rows of w.
template <PackedKind kKind, bool kF32Scales, int kCols>
class Multiplier {
 public:
  using Numbers = QuantNumbers<kKind, kF32Scales>;
  // For few rows each warp uses mma on its own, so it can dequantise the next weights before its products are complete. mma
  // and wgmma have the same bits.
  static constexpr bool kByWarps = kCols <= 32;
  // With float32 scales, which take more instructions, a warp reads the next tile's numbers before it is done with the current
  // tile. With other scales that was slower (docs/experiments/linears_cuda.md).
  static constexpr bool kReadsAhead = kF32Scales;
  // Steps of 16 inputs whose numbers are in registers at once.
  static constexpr int kSteps = kCols == 128 ? 4 : 8;

  __device__ explicit Multiplier(const QuantParams& q)
      : q_(q),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32) {
    set_codes<kKind, kF32Scales>(q.scales.codes, scales_);
  }

  __device__ void run(const Place& at, const Ring& ring, float (&sum)[kCols / 2]) {
    with_scale_groups<kKind, kF32Scales>(q_.scales, [&]<int kGroupSteps, bool kHasMore> {
      run<SharedTile<kKind, kF32Scales, kGroupSteps, kHasMore>, kGroupSteps>(at, ring, sum);
    });
  }

 private:
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void run(const Place& at, Ring ring, float (&sum)[kCols / 2]) {
    if constexpr (kByWarps) {
      float of_warp[kCols / 8][4] = {};
      run_by_warps<Tile, kGroupSteps>(at, ring, of_warp);
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i) {
        sum[i] = of_warp[i / 4][i % 4];
      }
    } else {
      wgmma_pin(sum);
      for (int step = 0; step < at.num_steps; ++step, ring.next()) {
        barrier_wait(ring.full(), ring.phase);
        const uint32_t x = ring.data + ring.stage * q_.stage_bytes;
#pragma unroll
        for (int first = 0; first < 8; first += kSteps) {
          multiply<kGroupSteps>(Tile(w_of(x), lane_), x, first, sum);
        }
        release(ring);
      }
      wgmma_pin(sum);
    }
  }

  // With mma the warp's loads from the stage may still be in flight here, because the mma that use them are only queued. The
  // fence orders them before TMA's next write to the stage. With wgmma, wgmma_wait has waited for all reads.
  __device__ __forceinline__ void release(const Ring& ring) const {
    if constexpr (kByWarps) {
      fence_async_proxy();
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(ring.empty());
    }
  }
  [[nodiscard]] __device__ __forceinline__ uint32_t w_of(uint32_t x) const {
    return x + kCols * 256 + warp_ * q_.tile_bytes;
  }

  // All tiles of a warp.
  template <typename Tile, int kGroupSteps>
  __device__ __forceinline__ void run_by_warps(const Place& at,
                                               Ring ring,
                                               float (&sum)[kCols / 8][4]) {
    int num_steps = at.num_steps;
    if constexpr (kReadsAhead) {
      // Makes the compiler keep these values, else it computes them again for each tile.
      ring.data = warp_uniform(ring.data);
      ring.barriers = warp_uniform(ring.barriers);
      num_steps = warp_uniform(num_steps);
    }
    const auto stage_of = [&](const Ring& r) { return r.data + r.stage * q_.stage_bytes; };
    typename Tile::Words next;
    if (kReadsAhead && num_steps > 0) {
      barrier_wait(ring.full(), ring.phase);
      Tile(w_of(stage_of(ring)), lane_).read(next);
    }
#pragma unroll 1
    for (int step = 0; step < num_steps; ++step) {
      Ring behind = ring;
      behind.next();
      const auto read_next = [&] {
        if (kReadsAhead && step + 1 < num_steps) {
          barrier_wait(behind.full(), behind.phase);
          Tile(w_of(stage_of(behind)), lane_).read(next);
        }
      };
      const uint32_t x = stage_of(ring);
      const Tile tile(w_of(x), lane_);
      typename Tile::Words words;
      if constexpr (kReadsAhead) {
        words = next;
      } else {
        barrier_wait(ring.full(), ring.phase);
      }
      multiply_by_warp<kGroupSteps>(tile, words, x, sum, read_next);
      release(ring);
      ring = behind;
    }
  }

  // A warp's 16 rows, two steps at a time. words: read already if kReadsAhead. in_the_middle: called between two steps.
  template <int kGroupSteps, typename Tile, typename InTheMiddle>
  __device__ __forceinline__ void multiply_by_warp(const Tile& tile,
                                                   typename Tile::Words& words,
                                                   uint32_t x,
                                                   float (&sum)[kCols / 8][4],
                                                   const InTheMiddle& in_the_middle) {
    const uint32_t lane_at =
        x + lane_ % 8 * 128 + static_cast<uint32_t>(lane_ / 8 ^ lane_ % 8) * 16;
#pragma unroll
    for (int step = 0; step < 8; step += 2) {
      if (step == 4) {
        in_the_middle();
      }
      const uint32_t at = (lane_at ^ step % 4 * 32U) + step / 4 * (kCols * 128);
      if (step % kGroupSteps == 0) {
        tile.read_scales(step / kGroupSteps, scales_);
      }
      if (!kReadsAhead && step % Numbers::kStepsOfLoad == 0) {
        tile.read(words, step / Numbers::kStepsOfLoad);
      }
      uint32_t d[2][4];
      Tile::decode(words, step, scales_, d[0]);
      if (kGroupSteps == 1) {
        tile.read_scales(step + 1, scales_);
      }
      Tile::decode(words, step + 1, scales_, d[1]);
#pragma unroll
      for (int t = 0; t < kCols / 8; ++t) {
        uint32_t b[4];
        load_matrices(b, at + t * 1024);
        mma_bf16(sum[t], d[0], b[0], b[1]);
        mma_bf16(sum[t], d[1], b[2], b[3]);
      }
    }
  }

  // A warpgroup's 64 rows. kGroupSteps: steps of a group.
  template <int kGroupSteps, typename Tile>
  __device__ __forceinline__ void multiply(const Tile& tile,
                                           uint32_t x,
                                           int first,
                                           float (&sum)[kCols / 2]) {
    uint32_t d[kSteps][4];
    typename Tile::Words words = {};
    tile.read_upper(words);
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = first + i;
      if (i == 0 || step % kGroupSteps == 0) {
        tile.read_scales(step / kGroupSteps, scales_);
      }
      if (step % Numbers::kStepsOfLoad == 0) {
        tile.read(words, step / Numbers::kStepsOfLoad);
      }
      Tile::decode(words, step, scales_, d[i]);
    }
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kSteps; ++i) {
      const int step = first + i;
      wgmma(sum, d[i], wgmma_operand(x + step / 4 * (kCols * 128) + step % 4 * 32, 1024, 16));
    }
    wgmma_commit();
    // ptxas serialises wgmmas if registers with operands of later ones are written while they run. So this waits for them
    // here; other warpgroups keep the tensor cores busy.
    wgmma_wait<0>();
  }

  const QuantParams& q_;
  int lane_;
  int warp_;
  typename Numbers::Scale scales_[2];
};

template <PackedKind kKind, bool kF32Scales, int kCols, int kGroups>
__global__ void __launch_bounds__(Sizes<kCols, kGroups>::kThreads, kCols <= 32 ? 3 : 1)
sm90_quant_kernel(const __grid_constant__ QuantParams q,
                  const __grid_constant__ CUtensorMap x_map) {
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
  const bool produces = threadIdx.x >= S::kConsumers;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Producer<kCols, kGroups> producer(q, x_map, at, lane);
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
    if (lane == 0) {
#pragma unroll 1
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(ring.barriers + i * 8, 1);
        barrier_init(ring.barriers + (kMaxSm90GemmStages + i) * 8, 4 * kGroups);
      }
      barrier_init(parts_barrier, 1);
      publish_barriers();
      fence_async_proxy();
    }
    __syncwarp();
    producer.start(ring, policy);
    if (lane == 0) {
      fetch_map(x_map);
      // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
      // ends after the kernels before it.
      pdl_release();
    }
  }
  __syncwarp();
  if (alone) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  if (produces) {
    pdl_wait();
    producer.run(ring, policy);
    __syncwarp();
    if (!alone) {
      if constexpr (kSumsShareRing<kCols>) {
        cluster_arrive();
        cluster_wait();
      }
      cluster_arrive();
    }
  } else {
    Outputs<kCols, kGroups> outputs(p, at, data, scales);
    outputs.fetch_constants();
    pdl_wait();
    outputs.fetch_old();
    if (p.a.squares != nullptr) {
      find_row_scales<S::kConsumers, 8>(p, at, scales);
    }
    float sum[kCols / 2] = {};
    Multiplier<kKind, kF32Scales, kCols>(q).run(at, ring, sum);
    named_sync(1, S::kConsumers);  // the ring is free: sums reuse its memory
    store_partial_sums<kCols, kGroups>(data, sum);
    if (p.split > 1) {
      fence_async_proxy();
      named_sync(1, S::kConsumers);
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
    outputs.finish();
    __syncwarp();
  }
  if (!alone) {  // others may still write to this CTA's barriers or copy its sums
    cluster_wait();
  }
#endif
}

}  // namespace sm90_quant_detail

template <PackedKind kKind, bool kF32Scales, int kCols, int kGroups>
void launch_sm90_quant(Stream& stream,
                       const Sm90GemmArgs& args,
                       const PackedWeight& weight,
                       const Sm90QuantPlan& plan) {
  using S = sm90_gemm_detail::Sizes<kCols, kGroups>;
  constexpr auto* kKernel =
      &sm90_quant_detail::sm90_quant_kernel<kKind, kF32Scales, kCols, kGroups>;
  const size_t shared_bytes = sm90_quant_shared_bytes(plan, weight);
  allow_shared_bytes<kKernel>(shared_bytes);
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? args.n / 2 : args.n;
  const int32_t tiles = ceil_div(outputs, gate ? S::kRows / 2 : S::kRows);
  const int32_t blocks = ceil_div(args.m, kCols);
  const size_t y_bytes = args.y_f32 ? 4 : 2;
  sm90_quant_detail::QuantParams params{
      {args,
       plan.split,
       plan.stages,
       sm90_quant_parts_at(plan, weight),
       ceil_div(std::min(args.m, kCols), plan.split),
       blocks,
       outputs % 4 == 0 && args.y_stride % 4 == 0 &&
           reinterpret_cast<uintptr_t>(args.y) % (4 * y_bytes) == 0},
      sm90_quant_stage_bytes(plan, weight),
      quant_tile_bytes(weight),
      {weight.group, quant_codes(weight), weight.has_zero_points, weight.has_bias}};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(tiles * blocks * plan.split));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  const CUtensorMap x_map =
      tensor_map<2>(args.x,
                    {static_cast<uint64_t>(args.k), static_cast<uint64_t>(args.m)},
                    {static_cast<uint64_t>(args.x_stride) * 2},
                    {64, static_cast<uint32_t>(kCols)},
                    CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  WR_CUDA(cudaLaunchKernelEx(&config, kKernel, params, x_map));
  as_cuda(stream).note_launch("sm90_quant_gemm");
}

template void launch_sm90_quant<WR_KIND, WR_F32_SCALES, WR_COLS, 1>(Stream& stream,
                                                                    const Sm90GemmArgs& args,
                                                                    const PackedWeight& weight,
                                                                    const Sm90QuantPlan& plan);
#if WR_COLS == 128
template void launch_sm90_quant<WR_KIND, WR_F32_SCALES, WR_COLS, 3>(Stream& stream,
                                                                    const Sm90GemmArgs& args,
                                                                    const PackedWeight& weight,
                                                                    const Sm90QuantPlan& plan);
#endif

}  // namespace warprow::cuda
