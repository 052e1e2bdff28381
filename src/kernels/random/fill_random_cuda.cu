// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/random/fill_random.h"

// Formula, shapes, numerics, preconditions: fill_random.h.
// Mapping: a thread computes eight adjacent elements from two Philox blocks and stores them at once.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) fill(FillRandomArgs a, bool aligned) {
  pdl_wait();
  const int64_t first = (int64_t{blockIdx.x} * kThreads + threadIdx.x) * kVec;
  if (first >= a.n) {
    return;
  }
  float v[kVec];
  float half[4];
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    random_quad(a.seed, first / 4 + q, a.scale, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[4 * q + i] = half[i];
    }
  }
  auto* dst = reinterpret_cast<Bf16*>(a.dst) + first;
  if (first + kVec <= a.n && aligned) {
    store8(dst, v);
    return;
  }
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    if (first + i < a.n) {
      store(dst + i, v[i]);
    }
  }
}

}  // namespace

void fill_random(Stream& stream, const FillRandomArgs& args) {
  if (args.n == 0) {
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.n, int64_t{kThreads} * kVec));
  launch(stream, "fill_random", {blocks, kThreads}, fill, args, rows_fit_vec(args.dst, 0, 2));
}

}  // namespace warprow::cuda
