// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/norm/layer_norm.h"

// Formula, shapes, preconditions: layer_norm.h.
// Mapping: one CTA a row. A thread keeps its 1, 2, 4 or 8 groups of eight adjacent elements in registers, so x is read
//   once. Weights are loaded after the row's sums.
// Bytes moved: T * width * (element of x + elements of add and out).
// Numerics: float32; a thread adds its elements in order, then a butterfly over lanes, then over warps: a row's result
//   depends on that row and the width alone.
namespace warprow::cuda {
namespace {

constexpr int kMaxThreads = 256;

template <typename X, typename Act>
struct Rows {
  const X* x;
  int64_t x_stride;
  const Act* add;  // null: none
  int64_t add_stride;
  Act* out;
  int64_t out_stride;
  const float* weight;
  const float* bias;  // null: none
  int32_t width;
  float eps;
};

// The same sum in every thread. Each call of a kernel has an array of its own.
__device__ __forceinline__ float sum_of_block(float v, float (&sums)[kMaxThreads / 32]) {
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

template <typename X, typename Act, int kGroups>
__global__ void __launch_bounds__(kMaxThreads) layer_norm_rows(Rows<X, Act> a) {
  __shared__ float sums[2][kMaxThreads / 32];
  float s[kGroups][kVec];
  const auto column = [](int g) { return static_cast<int>(g * blockDim.x + threadIdx.x) * kVec; };
  pdl_wait();
  pdl_release();
  float sum = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
      load8(a.x + blockIdx.x * a.x_stride + column(g), s[g]);
      if (a.add != nullptr) {
        float add[kVec];
        load8(a.add + blockIdx.x * a.add_stride + column(g), add);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          s[g][i] += add[i];
        }
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        sum += s[g][i];
      }
    }
  }
  const auto width = static_cast<float>(a.width);
  const float mean = sum_of_block(sum, sums[0]) / width;
  float squares = 0.0F;
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        const float apart = s[g][i] - mean;
        squares = fmaf(apart, apart, squares);
      }
    }
  }
  const float factor = 1.0F / sqrtf(sum_of_block(squares, sums[1]) / width + a.eps);
#pragma unroll
  for (int g = 0; g < kGroups; ++g) {
    if (column(g) < a.width) {
      float weight[kVec];
      float bias[kVec] = {};
      load8(a.weight + column(g), weight);
      if (a.bias != nullptr) {
        load8(a.bias + column(g), bias);
      }
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        s[g][i] = fmaf((s[g][i] - mean) * factor, weight[i], bias[i]);
      }
      store8(a.out + blockIdx.x * a.out_stride + column(g), s[g]);
    }
  }
}

// For any width and alignment: one element at a time, and x is read three times.
template <typename X, typename Act>
__global__ void __launch_bounds__(kMaxThreads) layer_norm_any_width(Rows<X, Act> a) {
  __shared__ float sums[2][kMaxThreads / 32];
  pdl_wait();
  pdl_release();
  const X* x = a.x + blockIdx.x * a.x_stride;
  const Act* add = a.add == nullptr ? nullptr : a.add + blockIdx.x * a.add_stride;
  const auto value = [&](int i) {
    return add == nullptr ? to_float(x[i]) : to_float(x[i]) + to_float(add[i]);
  };
  const auto first = static_cast<int>(threadIdx.x);
  const auto step = static_cast<int>(blockDim.x);
  float sum = 0.0F;
  for (int i = first; i < a.width; i += step) {
    sum += value(i);
  }
  const auto width = static_cast<float>(a.width);
  const float mean = sum_of_block(sum, sums[0]) / width;
  float squares = 0.0F;
  for (int i = first; i < a.width; i += step) {
    const float apart = value(i) - mean;
    squares = fmaf(apart, apart, squares);
  }
  const float factor = 1.0F / sqrtf(sum_of_block(squares, sums[1]) / width + a.eps);
  Act* out = a.out + blockIdx.x * a.out_stride;
  for (int i = first; i < a.width; i += step) {
    const float bias = a.bias == nullptr ? 0.0F : a.bias[i];
    store(out + i, fmaf((value(i) - mean) * factor, a.weight[i], bias));
  }
}

template <typename X, typename Act>
void launch_rows(Stream& stream, const LayerNormArgs& args) {
  const Rows<X, Act> rows{.x = static_cast<const X*>(args.x.data),
                          .x_stride = args.x.stride,
                          .add = static_cast<const Act*>(args.add.data),
                          .add_stride = args.add.stride,
                          .out = static_cast<Act*>(args.out.data),
                          .out_stride = args.out.stride,
                          .weight = args.weight.data,
                          .bias = args.bias.data,
                          .width = static_cast<int32_t>(args.x.shape[1]),
                          .eps = args.eps};
  const auto num_rows = static_cast<unsigned>(args.x.shape[0]);
  const int groups = ceil_div<int>(rows.width, kVec);
  int a_thread = 1;
  while (a_thread * kMaxThreads < groups) {
    a_thread *= 2;
  }
  const bool fits =
      rows.width % kVec == 0 && a_thread <= 8 && rows_fit_vec(rows.x, rows.x_stride, sizeof(X)) &&
      rows_fit_vec(rows.add, rows.add_stride, sizeof(Act)) &&
      rows_fit_vec(rows.out, rows.out_stride, sizeof(Act)) &&
      rows_fit_vec(rows.weight, 0, sizeof(float)) && rows_fit_vec(rows.bias, 0, sizeof(float));
  if (!fits) {
    launch(stream, "layer_norm", {num_rows, 256}, layer_norm_any_width<X, Act>, rows);
    return;
  }
  const LaunchShape shape{num_rows,
                          static_cast<unsigned>(round_up(ceil_div(groups, a_thread), 32))};
  if (a_thread == 1) {
    launch(stream, "layer_norm", shape, layer_norm_rows<X, Act, 1>, rows);
  } else if (a_thread == 2) {
    launch(stream, "layer_norm", shape, layer_norm_rows<X, Act, 2>, rows);
  } else if (a_thread == 4) {
    launch(stream, "layer_norm", shape, layer_norm_rows<X, Act, 4>, rows);
  } else {
    launch(stream, "layer_norm", shape, layer_norm_rows<X, Act, 8>, rows);
  }
}

}  // namespace

void layer_norm(Stream& stream, const LayerNormArgs& args) {
  WR_CHECK_EQ(args.out.shape[0], args.x.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.x.shape[1]);
  WR_CHECK_EQ(args.weight.shape[0], args.x.shape[1]);
  WR_CHECK(args.bias.empty() || args.bias.shape[0] == args.x.shape[1]);
  WR_CHECK(args.add.empty() ||
           (args.add.shape[0] == args.x.shape[0] && args.add.shape[1] == args.x.shape[1]));
  WR_CHECK(args.add.empty() || args.add.dtype == args.out.dtype);
  WR_CHECK(args.out.dtype == DType::kF32 || args.out.dtype == DType::kBF16);
  WR_CHECK(args.x.dtype == DType::kF32 || args.x.dtype == args.out.dtype);
  if (args.x.shape[0] == 0) {
    return;
  }
  if (args.out.dtype == DType::kF32) {
    launch_rows<float, float>(stream, args);
  } else if (args.x.dtype == DType::kF32) {
    launch_rows<float, Bf16>(stream, args);
  } else {
    launch_rows<Bf16, Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
