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
#include "kernels/linear/small_m/sm90_block.cuh"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_low_rank.cuh"
#include "kernels/linear/small_m/sm90_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in linear.h, for some dozens or hundreds of rows of x that are normalised, or half-normalised. Products of
//   half-normalised rows are divided by the root of the row's mean square. A sum may do the first half of the
//   next norm.
// Shapes: w bf16 [n, k]; x bf16 [m, k]; y bf16 or float32.
// Mapping: a CTA has one tile of 64, 128 or 192 rows of w and a block of up to 128 rows of x; if `split` CTAs of a cluster
//   share the tile (split-K), it has a part of k. One producer thread loads w and x, 64 inputs at a time, through a
//   ring of stages by TMA; the consumers fill it with w for the first time. Other warps find the scales of half-normalised rows. Consumer warpgroups multiply 64 rows of w each (rows of w are wgmma's m, rows of x
//   its n). Sums go through shared memory, where the parts of k are added. A SwiGLU tile has gate rows in its
//   first half and their up rows in its second. Each CTA then finishes a part of the rows of x. Products with a term have four
//   more warps, which compute it meanwhile.
// Bytes moved: w once, for more blocks mostly from L2; x from L2 once a tile. The kernel fills the ring with w before it waits for the
//   preceding kernel.
// Numerics: float32 sums in the order of k; the parts of k in order. The order depends on n, k and the plan's
//   split alone. Squares are summed by 64 columns, and these sums by four lanes in order.
// Preconditions: k and x_stride multiples of 8; w and x 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_gemm_detail {

// The consumers, a warp that loads, those that find the scales of half-normalised rows, and those of a term.
template <int kCols, int kGroups, bool kTerm>
constexpr int kAllThreads = Sizes<kCols, kGroups>::kConsumers + 32 + 32 * kScaleWarps<kCols> +
                            (kTerm ? kLowRankThreads : 0);

// Loads the tiles of w and x. A thread takes 60 ns for a copy, so a stage has one of each, and for the first fill all consumer
// warps load w.
template <int kCols, int kGroups>
struct Producer {
  using S = Sizes<kCols, kGroups>;
  const Params& p;
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;
  const Place& at;

  // The stage's bytes may have begun to come.
  __device__ static void expect(const Ring& ring) {
    barrier_arrive_expecting(ring.full(), S::kStageBytes);
  }
  __device__ void load_w(const Ring& ring, int step, uint64_t policy) const {
    const int rows = p.a.epilogue == LinearEpilogue::kSwiGlu ? S::kRows / 2 : S::kRows;
    tma_load_3d(ring.data + ring.stage * S::kStageBytes,
                w_map,
                ring.full(),
                (at.first + step) * 64,
                at.tile * rows,
                0,
                policy);
  }
  __device__ void load_x(const Ring& ring, int step) const {
    const uint32_t to = ring.data + ring.stage * S::kStageBytes + S::kWBytes;
    tma_load_2d(to, x_map, ring.full(), (at.first + step) * 64, at.block_row);
  }
  // For the first fill, one of its stages.
  __device__ void expect_first(Ring ring, int stage) const {
    if (stage < min(ring.stages, at.num_steps)) {
      ring.stage = stage;
      expect(ring);
    }
  }
  // Fills every stride-th stage for the first time, with w only.
  __device__ void start(Ring ring, uint64_t policy, int first, int stride) const {
    for (int step = first; step < min(ring.stages, at.num_steps); step += stride) {
      ring.stage = step;
      load_w(ring, step, policy);
    }
  }
  // Loads x for the first fill, then whole stages as they become free.
  __device__ void run(Ring ring, uint64_t policy) const {
    for (int step = 0; step < at.num_steps; ++step, ring.next()) {
      if (step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        expect(ring);
        load_w(ring, step, policy);
      }
      load_x(ring, step);
    }
  }
};

// The consumer loop: multiplies a warpgroup's 64 rows of w.
template <int kCols, int kGroups>
__device__ void multiply(const Place& at, Ring ring, float (&sum)[kCols / 2]) {
  using S = Sizes<kCols, kGroups>;
  const int lane = threadIdx.x % 32;
  const int group = warp_uniform(static_cast<int>(threadIdx.x) / 128);
  const int num_steps = warp_uniform(at.num_steps);
  uint32_t used = 0;
  wgmma_pin(sum);
  for (int step = 0; step < num_steps; ++step, ring.next()) {
    barrier_wait(ring.full(), ring.phase);
    const uint32_t w = ring.data + ring.stage * S::kStageBytes + group * 64 * kStepBytes;
    const uint32_t x = ring.data + ring.stage * S::kStageBytes + S::kWBytes;
    const uint64_t of_w = wgmma_operand(w, 1024, 16);
    const uint64_t of_x = wgmma_operand(x, 1024, 16);
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma(sum, further_operand(of_w, i * 32), further_operand(of_x, i * 32));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && lane == 0) {
      barrier_arrive(used);
    }
    used = ring.empty();
  }
  wgmma_wait<0>();
  wgmma_pin(sum);
  if (num_steps > 0 && lane == 0) {
    barrier_arrive(used);
  }
}

// Term: LowRankParams, or nothing.
template <int kCols, int kGroups, typename... Term>
__device__ __forceinline__ void run_cta(const Params& p,
                                        const CUtensorMap& w_map,
                                        const CUtensorMap& x_map,
                                        const Term&... term) {
  constexpr bool kTerm = sizeof...(Term) == 1;
  constexpr int kFirstTermWarp = kAllThreads<kCols, kGroups, false> / 32;
  using S = Sizes<kCols, kGroups>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxSm90GemmStages + 1];
  __shared__ float scales[kCols];
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Place at(p, kCols);
  const Ring ring{warp_uniform(kept_address(data)), warp_uniform(kept_address(barriers)), p.stages};
  const uint32_t parts_barrier = ring.barriers + 2 * kMaxSm90GemmStages * 8;
  const bool alone = p.split == 1;
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const bool produces = warp == S::kConsumers / 32;
  const Producer<kCols, kGroups> producer{p, w_map, x_map, at};
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
    if (lane == 0) {
      fetch_map(w_map);
    }
    init_barriers(ring, 4 * kGroups, parts_barrier, lane);
  }
  __syncthreads();
  if (!alone) {
    cluster_arrive();
  }
  if (produces) {
    producer.expect_first(ring, lane);
    if (lane == 0) {
      fetch_map(x_map);
      // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
      // ends after the kernels before it.
      pdl_release();
    }
    __syncwarp();
    pdl_wait();
    if (elect_one()) {
      producer.run(ring, policy);
    }
    __syncwarp();
    if (!alone) {
      cluster_wait();
      cluster_arrive();
    }
  } else if (kTerm && warp >= kFirstTermWarp) {
    if constexpr (kTerm) {
      const int thread = static_cast<int>(threadIdx.x) - kFirstTermWarp * 32;
      LowRankAddends<kCols, kGroups>(p, term..., at, data + p.term_at, scales, thread).compute();
      named_arrive(4, S::kConsumers + kLowRankThreads);
    }
    __syncwarp();
    if (!alone) {
      cluster_wait();
      cluster_arrive();
    }
  } else if (warp > S::kConsumers / 32) {
    leave_row_scales<S::kConsumers, kCols>(p, at, warp - S::kConsumers / 32 - 1, scales);
    if (kTerm && p.a.squares != nullptr) {
      named_arrive(kScalesForTerm, kLowRankThreads + 32 * kScaleWarps<kCols>);
    }
    __syncwarp();
    if (!alone) {
      cluster_wait();
      cluster_arrive();
    }
  } else {
    if (elect_one()) {
      producer.start(ring, policy, warp, S::kConsumers / 32);
    }
    __syncwarp();
    Outputs<kCols, kGroups, false, kTerm> outputs(p, at, data, scales);
    outputs.fetch_constants();
    pdl_wait();
    outputs.fetch_old();
    float sum[kCols / 2] = {};
    multiply<kCols, kGroups>(at, ring, sum);
    named_sync(1, S::kConsumers);  // the ring is free: sums reuse its memory
    store_partial_sums<kCols, kGroups>(data, sum);
    if (p.split > 1) {
      fence_async_proxy();
      named_sync(1, S::kConsumers);
      cluster_wait();  // until the others have their barriers
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
    await_row_scales<S::kConsumers, kCols>(p);
    if constexpr (kTerm) {
      named_sync(4, S::kConsumers + kLowRankThreads);
    }
    outputs.finish();
    __syncwarp();
  }
  if (!alone) {  // others may still write to this CTA's barriers or copy its sums
    cluster_wait();
  }
}

template <int kCols, int kGroups>
__global__ void __launch_bounds__(kAllThreads<kCols, kGroups, false>, 1) sm90_gemm_kernel(
    const __grid_constant__ Params p,
    const __grid_constant__ CUtensorMap w_map,
    const __grid_constant__ CUtensorMap x_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  run_cta<kCols, kGroups>(p, w_map, x_map);
#endif
}
template <int kCols, int kGroups>
__global__ void __launch_bounds__(kAllThreads<kCols, kGroups, true>, kGroups == 1 ? 2 : 1)
sm90_gemm_term_kernel(const __grid_constant__ Params p,
                      const __grid_constant__ CUtensorMap w_map,
                      const __grid_constant__ CUtensorMap x_map,
                      const __grid_constant__ LowRankParams term) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  run_cta<kCols, kGroups>(p, w_map, x_map, term);
#endif
}

// Tensor maps of bf16 matrices: boxes of 64 columns, 128-byte swizzle, zeros outside. Made on the host; allocate nothing.
// w: [halves][rows of a half][k].
inline CUtensorMap map_of_w(const Sm90GemmArgs& args, uint64_t halves, int32_t tile_rows) {
  const auto rows = static_cast<uint64_t>(args.n) / halves;
  const uint64_t row_bytes = static_cast<uint64_t>(args.k) * 2;
  return tensor_map<3>(args.w,
                       {static_cast<uint64_t>(args.k), rows, halves},
                       {row_bytes, rows * row_bytes},
                       {64,
                        static_cast<uint32_t>(tile_rows) / static_cast<uint32_t>(halves),
                        static_cast<uint32_t>(halves)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}
inline CUtensorMap map_of_x(const Sm90GemmArgs& args, int32_t cols) {
  return tensor_map<2>(args.x,
                       {static_cast<uint64_t>(args.k), args.mapped_rows(cols)},
                       {static_cast<uint64_t>(args.x_stride) * 2},
                       {64, static_cast<uint32_t>(cols)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

}  // namespace sm90_gemm_detail

namespace sm90_gemm_detail {

template <int kCols, int kGroups, auto* kKernel, typename... Term>
void launch_instance(Stream& stream,
                     const Sm90GemmArgs& args,
                     const Sm90GemmPlan& plan,
                     const Term&... term) {
  using S = Sizes<kCols, kGroups>;
  constexpr int kThreads = kAllThreads < kCols, kGroups, sizeof...(Term) == 1 > ;
  allow_shared_bytes<kKernel>(sm90_gemm_shared_bytes(plan));
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? args.n / 2 : args.n;
  const int32_t tiles = ceil_div(outputs, gate ? S::kRows / 2 : S::kRows);
  Params params = params_of(args, kCols, plan.split, plan.stages, sm90_gemm_parts_at(plan));
  params.term_at = sm90_gemm_term_at(plan);
  if constexpr (sizeof...(Term) == 1) {
    using Addends = LowRankAddends<kCols, kGroups>;
    const size_t needed = static_cast<size_t>(params.term_at) + Addends::bytes(params.part_rows);
    WR_CHECK_GE(sm90_gemm_shared_bytes(plan), needed + 1024);  // with the alignment
    WR_CHECK(!args.term->shrinks ||
                 sm90_gemm_is_resident(plan, args.m, args.n, stream.device().facts().num_sms),
             "CTAs wait for others that are not there");
  }
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(tiles * params.blocks * plan.split));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = sm90_gemm_shared_bytes(plan);
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  WR_CUDA(cudaLaunchKernelEx(&config,
                             kKernel,
                             params,
                             map_of_w(args, gate ? 2 : 1, S::kRows),
                             map_of_x(args, kCols),
                             term...));
  as_cuda(stream).note_launch("sm90_gemm");
}

}  // namespace sm90_gemm_detail

template <int kCols, int kGroups>
void launch_sm90_gemm(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan) {
  if constexpr (kCols == kMaxTermRows) {
    if (args.term != nullptr) {
      constexpr auto* kKernel = &sm90_gemm_detail::sm90_gemm_term_kernel<kCols, kGroups>;
      return sm90_gemm_detail::launch_instance<kCols, kGroups, kKernel>(
          stream, args, plan, low_rank_params(*args.term));
    }
  }
  constexpr auto* kKernel = &sm90_gemm_detail::sm90_gemm_kernel<kCols, kGroups>;
  sm90_gemm_detail::launch_instance<kCols, kGroups, kKernel>(stream, args, plan);
}

template void launch_sm90_gemm<WR_COLS, 1>(Stream& stream,
                                           const Sm90GemmArgs& args,
                                           const Sm90GemmPlan& plan);
#if WR_COLS == 128
template void launch_sm90_gemm<WR_COLS, 2>(Stream& stream,
                                           const Sm90GemmArgs& args,
                                           const Sm90GemmPlan& plan);
#endif
template void launch_sm90_gemm<WR_COLS, 3>(Stream& stream,
                                           const Sm90GemmArgs& args,
                                           const Sm90GemmPlan& plan);

}  // namespace warprow::cuda
