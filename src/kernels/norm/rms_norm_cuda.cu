// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/norm/rms_norm.h"

// Formula, shapes, preconditions: rms_norm.h. x and out are each float32 or bf16.
// Mapping: one CTA a row. A thread keeps its 1, 2, 4 or 8 groups of eight adjacent elements in registers, so
//   x is read once. The norm's weights are loaded before griddepcontrol.wait.
// Bytes moved: T * width * (element of x + element of out).
// Numerics: float32; a thread adds its squares in order, then a butterfly over lanes, then over warps: a
//   row's result depends on that row and the width alone.
namespace warprow::cuda {
namespace {

constexpr int kMaxThreads = 256;  // more threads would leave fewer rows in a wave

template <typename X, typename Out>
struct Rows {
  const X* x;
  int64_t x_stride;
  Out* out;
  int64_t out_stride;
  const float* weight;
  int32_t width;
  float eps;
};

__device__ __forceinline__ float sum_of_block(float v) {
  __shared__ float sums[kMaxThreads / 32];
  v = sum_of_lanes(v);
  const int num_warps = static_cast<int>(blockDim.x) / 32;
  if (num_warps == 1) {
    return v;
  }
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (lane == 0) {
    sums[threadIdx.x / 32] = v;
  }
  __syncthreads();
  return sum_of_lanes(lane < num_warps ? sums[lane] : 0.0F);
}

__device__ __forceinline__ float norm_factor(float squares, int32_t width, float eps) {
  return 1.0F / sqrtf(squares / static_cast<float>(width) + eps);
}

template <typename X, typename Out, int kGroups>
__global__ void __launch_bounds__(kMaxThreads) norm_rows(Rows<X, Out> a) {
  float weight[kGroups][kVec];
  float x[kGroups][kVec];
  const auto column = [](int g) { return static_cast<int>(g * blockDim.x + threadIdx.x) * kVec; };
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
      load8(a.weight + column(g), weight[g]);
    }
  }
  // The next kernel may start now, which only loads weights, or what was complete long before, until it has waited.
  pdl_release();
  pdl_wait();
  const X* row = a.x + blockIdx.x * a.x_stride;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
      load8(row + column(g), x[g]);
    }
  }
  float squares = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        squares = fmaf(x[g][i], x[g][i], squares);
      }
    }
  }
  const float factor = norm_factor(sum_of_block(squares), a.width, a.eps);
  Out* out = a.out + blockIdx.x * a.out_stride;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        x[g][i] = x[g][i] * factor * weight[g][i];
      }
      store8(out + column(g), x[g]);
    }
  }
}

// For any width and alignment: one element at a time, and x is read twice.
template <typename X, typename Out>
__global__ void __launch_bounds__(kMaxThreads) norm_rows_of_any_width(Rows<X, Out> a) {
  pdl_wait();
  pdl_release();
  const X* row = a.x + blockIdx.x * a.x_stride;
  Out* out = a.out + blockIdx.x * a.out_stride;
  float squares = 0.0F;
  for (auto i = static_cast<int>(threadIdx.x); i < a.width; i += blockDim.x) {
    const float v = to_float(row[i]);
    squares = fmaf(v, v, squares);
  }
  const float factor = norm_factor(sum_of_block(squares), a.width, a.eps);
  for (auto i = static_cast<int>(threadIdx.x); i < a.width; i += blockDim.x) {
    store(out + i, to_float(row[i]) * factor * a.weight[i]);
  }
}

template <typename X, typename Out>
void launch_norm(Stream& stream, const RmsNormArgs& args) {
  const Rows<X, Out> rows{.x = static_cast<const X*>(args.x.data),
                          .x_stride = args.x.stride,
                          .out = static_cast<Out*>(args.out.data),
                          .out_stride = args.out.stride,
                          .weight = args.weight.data,
                          .width = static_cast<int32_t>(args.x.shape[1]),
                          .eps = args.eps};
  const auto num_rows = static_cast<unsigned>(args.x.shape[0]);
  const int groups = ceil_div<int>(rows.width, kVec);
  int a_thread = 1;
  while (a_thread * kMaxThreads < groups) {
    a_thread *= 2;
  }
  const bool fits = rows.width % kVec == 0 && a_thread <= 8 &&
                    rows_fit_vec(rows.x, rows.x_stride, sizeof(X)) &&
                    rows_fit_vec(rows.out, rows.out_stride, sizeof(Out)) &&
                    rows_fit_vec(rows.weight, 0, sizeof(float));
  if (!fits) {
    launch(stream, "rms_norm", {num_rows, 256}, norm_rows_of_any_width<X, Out>, rows);
    return;
  }
  const LaunchShape shape{num_rows,
                          static_cast<unsigned>(round_up(ceil_div(groups, a_thread), 32))};
  if (a_thread == 1) {
    launch(stream, "rms_norm", shape, norm_rows<X, Out, 1>, rows);
  } else if (a_thread == 2) {
    launch(stream, "rms_norm", shape, norm_rows<X, Out, 2>, rows);
  } else if (a_thread == 4) {
    launch(stream, "rms_norm", shape, norm_rows<X, Out, 4>, rows);
  } else {
    launch(stream, "rms_norm", shape, norm_rows<X, Out, 8>, rows);
  }
}

template <typename X>
void launch_norm_to(Stream& stream, const RmsNormArgs& args) {
  if (args.out.dtype == DType::kF32) {
    launch_norm<X, float>(stream, args);
  } else {
    launch_norm<X, Bf16>(stream, args);
  }
}

}  // namespace

void rms_norm(Stream& stream, const RmsNormArgs& args) {
  WR_CHECK_EQ(args.out.shape[0], args.x.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  WR_CHECK_EQ(args.weight.shape[0], args.x.shape[1]);
  WR_CHECK(args.x.dtype == DType::kF32 || args.x.dtype == DType::kBF16);
  WR_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == DType::kBF16);
  if (args.x.shape[0] == 0) {
    return;
  }
  if (args.x.dtype == DType::kF32) {
    launch_norm_to<float>(stream, args);
  } else {
    launch_norm_to<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
