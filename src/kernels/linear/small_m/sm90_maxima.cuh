// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma.cuh"
#include "kernels/linear/largest.cuh"
#include "kernels/linear/small_m/sm90_maxima.h"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: p[t, j] = sum over i of w[j, i] * x[t, i]; maxima[t, g] = the largest of p[t, 64 g .. 64 g + 63] and the lowest
//   output that has it.
// Shapes: w bf16 [n, k]; x bf16 [m, k], m at most 128; maxima [m, n / 64].
// Mapping: persistent CTAs of three consumer warpgroups. A tile is 192 rows of w and all rows of x; a warpgroup has 64 rows of w
//   (rows of w are wgmma's m, rows of x its n). One producer thread loads w and x, 64 inputs at a time, through a ring of stages
//   by TMA, which goes on across the ends of tiles. Sums stay in registers: a butterfly over lanes reduces a warp's 16 outputs
//   of each column, and the four warps of a warpgroup reduce theirs through shared memory.
// Bytes moved: w once; x from L2 once a tile. The kernel fills the ring with w before it waits for the preceding kernel.
// Numerics: float32 sums in the order of k, as in sm90_bf16_gemm_small_m. NaN if an output is NaN.
// Preconditions: k and x_stride multiples of 8, n of 64; w and x 16-byte aligned; sm_90a.
// Origin: own; that a head can leave less than its logits is FlashSampling's (arXiv 2603.15854).
namespace warprow::cuda {

namespace sm90_maxima_detail {

constexpr int kGroups = 3;  // consumer warpgroups
constexpr int kRows = kGroups * 64;
constexpr int kConsumers = kGroups * 128;
constexpr int kThreads = kConsumers + 128;  // setmaxnreg counts whole warpgroups

template <int kCols>
struct Sizes {
  static constexpr int kWBytes = kRows * 128;
  static constexpr int kStageBytes = kWBytes + kCols * 128;
  // For the reduction over the four warps of each warpgroup: a value of each warp for each column.
  static constexpr int kReductionBytes = kGroups * 4 * kCols * static_cast<int>(sizeof(Largest));
  static constexpr int kStages =
      std::min(8, (kSm90GemmSharedBytes - 1024 - kReductionBytes) / kStageBytes);
  static constexpr size_t kSharedBytes = kStages * kStageBytes + kReductionBytes + 1024;
  using Ring = RingCursor<kStages>;
};

struct Params {
  int32_t m;
  int32_t n;
  int32_t k;
  int32_t num_tiles;
  OutputMax* maxima;
};

// The producer, one lane.
template <int kCols>
struct Producer {
  using S = Sizes<kCols>;
  const Params& p;
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;

  __device__ void load_w(const typename S::Ring& ring, int tile, int step) const {
    barrier_arrive_expecting(ring.full(), S::kStageBytes);
    tma_load_2d(ring.data + ring.stage * S::kStageBytes,
                w_map,
                ring.full(),
                step * 64,
                tile * kRows,
                read_once());
  }

  __device__ void run(typename S::Ring ring) const {
    const int steps = (p.k + 63) / 64;
    int tile = static_cast<int>(blockIdx.x);
    int early = 0;  // steps whose w is on its way
    for (typename S::Ring at = ring; early < min(S::kStages, steps); ++early, at.next()) {
      load_w(at, tile, early);
    }
    pdl_release();
    pdl_wait();
    for (; tile < p.num_tiles; tile += static_cast<int>(gridDim.x)) {
      for (int step = 0; step < steps; ++step, ring.next()) {
        if (early > 0) {
          --early;
        } else {
          barrier_wait(ring.empty(), ring.phase ^ 1);
          load_w(ring, tile, step);
        }
        tma_load_2d(
            ring.data + ring.stage * S::kStageBytes + S::kWBytes, x_map, ring.full(), step * 64, 0);
      }
    }
  }
};

// A step of a butterfly reduction: two lanes whose numbers differ by kLane each give the other one half of their kCount
// columns, and reduce the half that they keep.
template <int kLane, int kCount, int kAll>
__device__ __forceinline__ void halve_columns(Largest (&of)[kAll], int lane) {
  const bool upper = (lane & kLane) != 0;
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const Largest given = upper ? of[i] : of[i + kCount / 2];
    Largest kept = upper ? of[i + kCount / 2] : of[i];
    kept.take(Largest{__shfl_xor_sync(~0U, given.value, kLane),
                      __shfl_xor_sync(~0U, given.output, kLane)});
    of[i] = kept;
  }
}

// A consumer warpgroup: 64 rows of w of each tile.
template <int kCols>
class Consumer {
 public:
  using S = Sizes<kCols>;
  __device__ Consumer(const Params& p, Largest* reductions)
      : p_(p),
        group_(warp_uniform(static_cast<int>(threadIdx.x) / 128)),
        warp_(warp_uniform(static_cast<int>(threadIdx.x) % 128 / 32)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        reduction_(reductions + group_ * 4 * kCols) {}

  __device__ void run(typename S::Ring ring) {
    for (int tile = static_cast<int>(blockIdx.x); tile < p_.num_tiles;
         tile += static_cast<int>(gridDim.x)) {
      float sum[kCols / 2] = {};
      multiply(ring, sum);
      leave(tile, sum);
    }
  }

 private:
  __device__ void multiply(typename S::Ring& ring, float (&sum)[kCols / 2]) const {
    const int steps = warp_uniform((p_.k + 63) / 64);
    uint32_t used = 0;
    wgmma_pin(sum);
    for (int step = 0; step < steps; ++step, ring.next()) {
      barrier_wait(ring.full(), ring.phase);
      const uint32_t w = ring.data + ring.stage * S::kStageBytes + group_ * 64 * 128;
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
      if (step > 0 && lane_ == 0) {
        barrier_arrive(used);
      }
      used = ring.empty();
    }
    wgmma_wait<0>();
    wgmma_pin(sum);
    if (lane_ == 0) {
      barrier_arrive(used);
    }
  }

  // The lane's products are of rows lane / 4 and lane / 4 + 8 of its warp's 16 rows of w; of columns 8 j + lane % 4 * 2 and
  // the next one for each j.
  __device__ void leave(int tile, const float (&sum)[kCols / 2]) const {
    constexpr int kHeld = kCols / 4;  // columns of a lane
    const int first_output = (tile * kGroups + group_) * kMaxOutputs;
    Largest of[kHeld];
#pragma unroll
    for (int i = 0; i < kHeld; ++i) {
      of[i] = Largest::of_numbers_from(0);
      of[i].take(sum[i / 2 * 4 + i % 2], 0);
      of[i].take(sum[i / 2 * 4 + i % 2 + 2], 8);
      of[i].output += warp_ * 16 + lane_ / 4;
    }
    halve_columns<16, kHeld>(of, lane_);
    halve_columns<8, kHeld / 2>(of, lane_);
    halve_columns<4, kHeld / 4>(of, lane_);
    const int first = lane_ / 4 % 2 * (kHeld / 8) + lane_ / 8 % 2 * (kHeld / 4) +
                      lane_ / 16 * (kHeld / 2);  // of the lane's columns that it has kept
    named_sync(1 + group_, 128);                 // the values of the tile before have been read
#pragma unroll
    for (int i = 0; i < kHeld / 8; ++i) {
      const int held = first + i;
      reduction_[warp_ * kCols + held / 2 * 8 + lane_ % 4 * 2 + held % 2] = of[i];
    }
    named_sync(1 + group_, 128);
    const int number = tile * kGroups + group_;
    const int per_row = p_.n / kMaxOutputs;
    const int column = static_cast<int>(threadIdx.x) % 128;
    if (column < min(kCols, p_.m) && number < per_row) {
      Largest largest = reduction_[column];
#pragma unroll
      for (int warp = 1; warp < 4; ++warp) {
        largest.take(reduction_[warp * kCols + column]);
      }
      p_.maxima[static_cast<int64_t>(column) * per_row + number] = {largest.value,
                                                                    first_output + largest.output};
    }
  }

  const Params& p_;
  int group_;
  int warp_;  // of the warpgroup
  int lane_;
  Largest* reduction_;
};

template <int kCols>
__global__ void __launch_bounds__(kThreads, 1) sm90_maxima_kernel(
    const __grid_constant__ Params p,
    const __grid_constant__ CUtensorMap w_map,
    const __grid_constant__ CUtensorMap x_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using S = Sizes<kCols>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * S::kStages];
  unsigned char* const data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const typename S::Ring ring{shared_address(data), shared_address(barriers), S::kStages};
  if (threadIdx.x == kConsumers) {
    fetch_map(w_map);
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (S::kStages + i) * 8, kConsumers / 32);
    }
    publish_barriers();
    fence_async_proxy();
  }
  __syncthreads();
  if (threadIdx.x >= kConsumers) {
    lower_registers<40>();
    if (threadIdx.x == kConsumers) {
      Producer<kCols>{p, w_map, x_map}.run(ring);
    }
  } else {
    raise_registers<152>();
    pdl_wait();
    auto* const reductions = reinterpret_cast<Largest*>(data + S::kStages * S::kStageBytes);
    Consumer<kCols>(p, reductions).run(ring);
  }
#endif
}

}  // namespace sm90_maxima_detail

template <int kCols>
void launch_sm90_maxima(Stream& stream, const Sm90GemmArgs& args) {
  using namespace sm90_maxima_detail;
  using S = Sizes<kCols>;
  constexpr auto* kKernel = &sm90_maxima_kernel<kCols>;
  allow_shared_bytes<kKernel>(S::kSharedBytes);
  const Params params{args.m, args.n, args.k, ceil_div(args.n, kRows), args.maxima};
  const auto map = [&](const void* data, uint64_t rows, int64_t stride, uint32_t box) {
    return tensor_map<2>(data,
                         {static_cast<uint64_t>(args.k), rows},
                         {static_cast<uint64_t>(stride) * 2},
                         {64, box},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  };
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(std::min(params.num_tiles, stream.device().facts().num_sms)));
  shape.block = dim3(kThreads);
  shape.shared_bytes = S::kSharedBytes;
  launch(stream,
         "sm90_maxima",
         shape,
         kKernel,
         params,
         map(args.w, static_cast<uint64_t>(args.n), args.k, kRows),
         map(args.x, args.mapped_rows(kCols), args.x_stride, kCols));
}

template void launch_sm90_maxima<WR_COLS>(Stream& stream, const Sm90GemmArgs& args);

}  // namespace warprow::cuda
