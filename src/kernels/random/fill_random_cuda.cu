// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/random/fill_random.h"

// Formula, shapes, numerics, preconditions: fill_random.h.
// Mapping: a thread computes eight adjacent elements from two Philox blocks and stores them at once. For a part of a
//   matrix, a thread computes one element.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

// A number of the vector, as both types store it.
__device__ __forceinline__ float rounded(float v) { return to_float(__float2bfloat16_rn(v)); }

template <typename T>
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
    random_quad(a.seed, (a.first + first) / 4 + q, a.scale, half);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      v[4 * q + i] = rounded(half[i]);
    }
  }
  T* dst = static_cast<T*>(a.dst) + first;
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

template <typename T>
__global__ void __launch_bounds__(kThreads) fill_part(FillRandomArgs a) {
  pdl_wait();
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= a.n) {
    return;
  }
  const int64_t element = a.cols == 0 ? a.first + i : a.first + i / a.cols * a.stride + i % a.cols;
  float v[4];
  random_quad(a.seed, element / 4, a.scale, v);
  const int lane = static_cast<int>(element % 4);
  store(static_cast<T*>(a.dst) + i,
        rounded(lane == 0   ? v[0]
                : lane == 1 ? v[1]
                : lane == 2 ? v[2]
                            : v[3]));
}

template <typename T>
void launch_fill(Stream& stream, const FillRandomArgs& args) {
  if (args.cols != 0 || args.first % 4 != 0) {
    const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.n, kThreads));
    launch(stream, "fill_random", {blocks, kThreads}, fill_part<T>, args);
    return;
  }
  const auto blocks = static_cast<unsigned>(ceil_div<int64_t>(args.n, int64_t{kThreads} * kVec));
  launch(stream,
         "fill_random",
         {blocks, kThreads},
         fill<T>,
         args,
         rows_fit_vec(args.dst, 0, sizeof(T)));
}

}  // namespace

void fill_random(Stream& stream, const FillRandomArgs& args) {
  WR_CHECK(args.type == DType::kBF16 || args.type == DType::kF32);
  if (args.n == 0) {
    return;
  }
  if (args.type == DType::kF32) {
    launch_fill<float>(stream, args);
  } else {
    launch_fill<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
