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
#include "kernels/linear/small_m/sm90_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in linear.h, for some dozens or hundreds of rows of x that are normalised, or half-normalised. Products of
//   half-normalised rows are divided by the root of the row's mean square. A sum may do the first half of the
//   next norm.
// Shapes: w bf16 [n, k]; x bf16 [m, k]; y bf16 or float32.
// Mapping: a CTA has one tile of 64, 128 or 192 rows of w and a block of up to 128 rows of x; if `split` CTAs of a cluster
//   share the tile (split-K), it has a part of k. One producer thread loads w and x, 64 inputs at a time, through a
//   ring of stages by TMA. Consumer warpgroups multiply 64 rows of w each (rows of w are wgmma's m, rows of x
//   its n). Sums go through shared memory, where the parts of k are added. A SwiGLU tile has gate rows in its
//   first half and their up rows in its second. Each CTA then finishes a part of the rows of x.
// Bytes moved: w once, for more blocks mostly from L2; x from L2 once a tile. The kernel fills the ring with w before it waits for the
//   preceding kernel.
// Numerics: float32 sums in the order of k; the parts of k in order. The order depends on n, k and the plan's
//   split alone. Squares are summed by 64 columns, and these sums by four lanes in order.
// Preconditions: k and x_stride multiples of 8; w and x 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_gemm_detail {

// The producer, one lane: loads the tiles of w and x.
template <int kCols, int kGroups>
struct Producer {
  using S = Sizes<kCols, kGroups>;
  const Params& p;
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;
  const Place& at;

  // First rows of w of the two halves of a tile.
  __device__ int row() const {
    return at.tile * (p.a.epilogue == LinearEpilogue::kSwiGlu ? S::kRows / 2 : S::kRows);
  }
  __device__ int second_row() const {
    return row() + (p.a.epilogue == LinearEpilogue::kSwiGlu ? p.a.n / 2 : S::kRows / 2);
  }
  __device__ void load_w(const Ring& ring, int step, uint64_t policy) const {
    const uint32_t to = ring.data + ring.stage * S::kStageBytes;
    const int col = (at.first + step) * 64;
    barrier_arrive_expecting(ring.full(), S::kStageBytes);
    tma_load_2d(to, w_map, ring.full(), col, row(), policy);
    tma_load_2d(to + S::kWBytes / 2, w_map, ring.full(), col, second_row(), policy);
  }
  __device__ void load_x(const Ring& ring, int step) const {
    const uint32_t to = ring.data + ring.stage * S::kStageBytes + S::kWBytes;
    tma_load_2d(to, x_map, ring.full(), (at.first + step) * 64, at.block_row);
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

template <int kCols, int kGroups>
__global__ void __launch_bounds__(Sizes<kCols, kGroups>::kThreads, 1) sm90_gemm_kernel(
    const __grid_constant__ Params p,
    const __grid_constant__ CUtensorMap w_map,
    const __grid_constant__ CUtensorMap x_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kCols, kGroups>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxSm90GemmStages + 1];
  __shared__ float scales[kCols];
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Place at(p, kCols);
  const Ring ring{shared_address(data), shared_address(barriers), p.stages};
  const uint32_t parts_barrier = ring.barriers + 2 * kMaxSm90GemmStages * 8;
  const bool alone = p.split == 1;
  const bool produces = threadIdx.x == S::kConsumers;
  const Producer<kCols, kGroups> producer{p, w_map, x_map, at};
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
    fetch_map(w_map);
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (kMaxSm90GemmStages + i) * 8, 4 * kGroups);
    }
    barrier_init(parts_barrier, 1);
    publish_barriers();
    fence_async_proxy();
    producer.start(ring, policy);
    fetch_map(x_map);
    // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
    // ends after the kernels before it.
    pdl_release();
  }
  __syncwarp();
  if (alone) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  if (threadIdx.x >= S::kConsumers) {
    pdl_wait();
    if (produces) {
      producer.run(ring, policy);
    }
    __syncwarp();
    if (!alone) {
      cluster_arrive();
    }
  } else {
    Outputs<kCols, kGroups> outputs(p, at, data, scales);
    outputs.fetch_constants();
    pdl_wait();
    outputs.fetch_old();
    if (p.a.squares != nullptr) {
      find_row_scales<S::kConsumers>(p, at, scales);
    }
    float sum[kCols / 2] = {};
    multiply<kCols, kGroups>(at, ring, sum);
    named_sync(1, S::kConsumers);  // the ring is free: sums reuse its memory
    store_partial_sums<kCols, kGroups>(data, sum);
    if (p.split > 1) {
      fence_async_proxy();
      named_sync(1, S::kConsumers);
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

// Tensor map of a bf16 matrix [rows, cols]: boxes of 64 columns, 128-byte swizzle, zeros outside. Made on the
// host; allocates nothing.
inline CUtensorMap sm90_gemm_map(
    const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box_rows) {
  return tensor_map<2>(data,
                       {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                       {static_cast<uint64_t>(stride) * 2},
                       {64, static_cast<uint32_t>(box_rows)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

}  // namespace sm90_gemm_detail

template <int kCols, int kGroups>
void launch_sm90_gemm(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan) {
  using S = sm90_gemm_detail::Sizes<kCols, kGroups>;
  constexpr auto* kKernel = &sm90_gemm_detail::sm90_gemm_kernel<kCols, kGroups>;
  allow_shared_bytes<kKernel>(sm90_gemm_shared_bytes(plan));
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? args.n / 2 : args.n;
  const int32_t tiles = ceil_div(outputs, gate ? S::kRows / 2 : S::kRows);
  const int32_t blocks = ceil_div(args.m, kCols);
  const size_t y_bytes = args.y_f32 ? 4 : 2;
  const sm90_gemm_detail::Params params{
      args,
      plan.split,
      plan.stages,
      sm90_gemm_parts_at(plan),
      ceil_div(std::min(args.m, kCols), plan.split),
      blocks,
      outputs % 4 == 0 && args.y_stride % 4 == 0 &&
          reinterpret_cast<uintptr_t>(args.y) % (4 * y_bytes) == 0};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(tiles * blocks * plan.split));
  config.blockDim = dim3(S::kThreads);
  config.dynamicSmemBytes = sm90_gemm_shared_bytes(plan);
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  WR_CUDA(cudaLaunchKernelEx(
      &config,
      kKernel,
      params,
      sm90_gemm_detail::sm90_gemm_map(args.w, args.k, args.n, args.k, S::kRows / 2),
      sm90_gemm_detail::sm90_gemm_map(args.x, args.k, args.m, args.x_stride, kCols)));
  as_cuda(stream).note_launch("sm90_gemm");
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
