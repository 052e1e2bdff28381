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
