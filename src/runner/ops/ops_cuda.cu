// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "runner/ops/runner_ops.h"

#include <cstdint>
#include <memory>

namespace warprow {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kLanes = 32;
// Up to this many rows get one block each: one may be a long prefill.
constexpr int64_t kFewRows = 64;
constexpr int32_t kTeamThreads = 512;

// The lanes of a warp or a block that share a row.
struct LaneTeam {
  int32_t lane;
  int32_t lanes;
  template <typename F>
  WR_HD void for_each(int64_t n, F f) const {
    for (int64_t i = lane; i < n; i += lanes) {
      f(i);
    }
  }
};

// A block that has a row to itself.
struct BlockTeam : LaneTeam {
  template <typename F>
  __device__ int64_t max_of(int64_t n, int64_t enough, F f) const {
    __shared__ int64_t of_warps[kTeamThreads / kLanes];
    int64_t best = 0;
    for (int64_t i = lane; i < n && best < enough; i += lanes) {
      best = max(best, f(i));
    }
    for (int d = kLanes / 2; d > 0; d /= 2) {
      best = max(best, __shfl_xor_sync(0xffffffffU, best, d));
    }
    if (lane % kLanes == 0) {
      of_warps[lane / kLanes] = best;
    }
    __syncthreads();
    for (int w = 0; w < kTeamThreads / kLanes; ++w) {
      best = max(best, of_warps[w]);
    }
    return best;
  }
};

template <typename Op>
__global__ void __launch_bounds__(kTeamThreads) teams_kernel(const __grid_constant__ Op op) {
  cuda::pdl_wait();
  cuda::pdl_release();
  op(blockIdx.x, BlockTeam{{static_cast<int32_t>(threadIdx.x), kTeamThreads}});
}

template <typename Op>
__global__ void __launch_bounds__(kThreads) rows_kernel(const __grid_constant__ Op op,
                                                        int64_t n,
                                                        int32_t lanes) {
  cuda::pdl_wait();
  cuda::pdl_release();
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread / lanes < n) {
    op(thread / lanes, LaneTeam{static_cast<int32_t>(thread % lanes), lanes});
  }
}

template <typename Op>
__global__ void __launch_bounds__(kThreads) items_kernel(const __grid_constant__ Op op, int64_t n) {
  cuda::pdl_wait();
  cuda::pdl_release();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) {
    op(i);
  }
}

struct CudaLauncher {
  template <typename Op>
  void for_rows(Stream& stream, const char* name, int64_t n, const Op& op) const {
    const int32_t lanes = n <= kFewRows ? kThreads : kLanes;
    if (n > 0) {
      cuda::launch(stream, name, shape(n * lanes), rows_kernel<Op>, op, n, lanes);
    }
  }

  template <typename Op>
  void for_teams(Stream& stream, const char* name, int64_t n, const Op& op) const {
    if (n > 0) {
      const cuda::LaunchShape shape{dim3(static_cast<unsigned>(n)), dim3(kTeamThreads)};
      cuda::launch(stream, name, shape, teams_kernel<Op>, op);
    }
  }

  template <typename Op>
  void for_items(Stream& stream, const char* name, int64_t n, const Op& op) const {
    if (n > 0) {
      cuda::launch(stream, name, shape(n), items_kernel<Op>, op, n);
    }
  }

 private:
  static cuda::LaunchShape shape(int64_t threads) {
    cuda::LaunchShape s;
    s.grid = dim3(static_cast<unsigned>((threads + kThreads - 1) / kThreads));
    s.block = dim3(kThreads);
    return s;
  }
};

}  // namespace

std::unique_ptr<RunnerOps> make_cuda_runner_ops(Device& /*device*/) {
  return std::make_unique<RunnerOpsImpl<CudaLauncher>>(CudaLauncher{});
}

}  // namespace warprow
