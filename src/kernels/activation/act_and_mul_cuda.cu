// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/gelu.h"
#include "kernels/cuda/vector_access.cuh"

// Formula, shapes, preconditions: act_and_mul.h. x and out are bf16, or both are
// float32.
// Mapping: SiLU: a CTA takes 128 groups of eight outputs of one row, a thread one group. GELU: a CTA takes 128 outputs, a
//   thread one.
//   float32: a thread one output.
// Bytes moved: 6 * T * width; float32 12 * T * width.
// Numerics: float32. For bf16 with the fast exponential and division (a few ulp), and one rounding; for float32 with
//   accurate ones. An output depends on its own two inputs alone.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct Rows {
  const T* x;
  int64_t x_stride;
  T* out;
  int64_t out_stride;
  int32_t width;
};

// v / (1 + e^-u), as accurate as an output of type T needs.
template <typename T>
__device__ __forceinline__ float times_sigmoid(float v, float u) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return __fdiv_rn(v, 1.0F + expf(-u));
  } else {
    return __fdividef(v, 1.0F + __expf(-u));
  }
}

template <typename T>
__device__ __forceinline__ float silu_times(float gate, float up) {
  return times_sigmoid<T>(gate, gate) * up;
}

__global__ void __launch_bounds__(kThreads) silu_rows(Rows<Bf16> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVec;
  if (column >= a.width) {
    return;
  }
  const Bf16* row = a.x + blockIdx.x * a.x_stride + column;
  float gate[kVec];
  float up[kVec];
  load8(row, gate);
  load8(row + a.width, up);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    gate[i] = silu_times<Bf16>(gate[i], up[i]);
  }
  store8(a.out + blockIdx.x * a.out_stride + column, gate);
}

// For any width and alignment.
template <typename T>
__global__ void __launch_bounds__(kThreads) silu_rows_of_any_width(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const T* row = a.x + blockIdx.x * a.x_stride + column;
  store(a.out + blockIdx.x * a.out_stride + column,
        silu_times<T>(to_float(row[0]), to_float(row[a.width])));
}

template <typename T, bool kExact>
__device__ __forceinline__ float gelu_of(float v) {
  if constexpr (kExact) {
    // erfc(-x) is 1 + erf(x) without cancellation far below 0.
    return 0.5F * v * erfcf(v * -0.70710678118654752F);
  }
  const float twice_u = 1.5957691216057308F * v * (1.0F + 0.044715F * v * v);
  return times_sigmoid<T>(v, twice_u);
}

template <typename T, bool kExact>
__global__ void __launch_bounds__(kThreads) gelu_in_place(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVec;
  if (column >= a.width) {
    return;
  }
  T* at = a.out + blockIdx.x * a.out_stride + column;
  float v[kVec];
  load8(at, v);
#pragma unroll
  for (int i = 0; i < kVec; ++i) {
    v[i] = gelu_of<T, kExact>(v[i]);
  }
  store8(at, v);
}

// For any width and alignment.
template <typename T, bool kExact>
__global__ void __launch_bounds__(kThreads) gelu_in_place_of_any_width(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column < a.width) {
    T* at = a.out + blockIdx.x * a.out_stride + column;
    store(at, gelu_of<T, kExact>(to_float(*at)));
  }
}

template <typename T, bool kExact>
__global__ void __launch_bounds__(kThreads) gelu_rows(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const T* row = a.x + blockIdx.x * a.x_stride + column;
  store(a.out + blockIdx.x * a.out_stride + column,
        gelu_of<T, kExact>(to_float(row[0])) * to_float(row[a.width]));
}

// Checks the shapes. A view for the kernels.
template <typename T>
Rows<T> rows_of(const ConstActView& x, const ActView& out) {
  WR_CHECK_EQ(x.shape[0], out.shape[0]);
  WR_CHECK_EQ(x.shape[1], 2 * out.shape[1]);
  constexpr DType kType = sizeof(T) == sizeof(float) ? DType::kF32 : DType::kBF16;
  WR_CHECK(x.dtype == kType && out.dtype == kType);
  return {.x = static_cast<const T*>(x.data),
          .x_stride = x.stride,
          .out = static_cast<T*>(out.data),
          .out_stride = out.stride,
          .width = static_cast<int32_t>(out.shape[1])};
}

LaunchShape shape_of(const ActView& out, int64_t outputs_of_a_block) {
  return {dim3(static_cast<unsigned>(out.shape[0]),
               static_cast<unsigned>(ceil_div(out.shape[1], outputs_of_a_block))),
          kThreads};
}

}  // namespace

void silu_and_mul(Stream& stream, const SiluAndMulArgs& args) {
  if (args.out.shape[0] == 0) {
    return;
  }
  if (args.out.dtype == DType::kF32) {
    const Rows<float> rows = rows_of<float>(args.x, args.out);
    const LaunchShape shape = shape_of(args.out, kThreads);
    launch(stream, "silu_and_mul", shape, silu_rows_of_any_width<float>, rows);
    return;
  }
  const Rows<Bf16> rows = rows_of<Bf16>(args.x, args.out);
  const bool fits = rows.width % kVec == 0 && rows_fit_vec(rows.x, rows.x_stride, sizeof(Bf16)) &&
                    rows_fit_vec(rows.out, rows.out_stride, sizeof(Bf16));
  launch(stream,
         "silu_and_mul",
         shape_of(args.out, fits ? kThreads * kVec : kThreads),
         fits ? silu_rows : silu_rows_of_any_width<Bf16>,
         rows);
}

void gelu_and_mul(Stream& stream, const GeluAndMulArgs& args) {
  if (args.out.shape[0] == 0) {
    return;
  }
  const LaunchShape shape = shape_of(args.out, kThreads);
  if (args.out.dtype == DType::kF32) {
    launch(stream,
           "gelu_and_mul",
           shape,
           args.exact ? gelu_rows<float, true> : gelu_rows<float, false>,
           rows_of<float>(args.x, args.out));
  } else {
    launch(stream,
           "gelu_and_mul",
           shape,
           args.exact ? gelu_rows<Bf16, true> : gelu_rows<Bf16, false>,
           rows_of<Bf16>(args.x, args.out));
  }
}

namespace {

template <typename T, bool kExact>
void launch_gelu(Stream& stream, const ActView& x) {
  const Rows<T> rows{.x = nullptr,
                     .x_stride = 0,
                     .out = static_cast<T*>(x.data),
                     .out_stride = x.stride,
                     .width = static_cast<int32_t>(x.shape[1])};
  const bool fits = rows.width % kVec == 0 && rows_fit_vec(rows.out, rows.out_stride, sizeof(T));
  launch(stream,
         "gelu",
         shape_of(x, fits ? kThreads * kVec : kThreads),
         fits ? gelu_in_place<T, kExact> : gelu_in_place_of_any_width<T, kExact>,
         rows);
}

}  // namespace

void gelu(Stream& stream, const GeluArgs& args) {
  WR_CHECK(args.x.dtype == DType::kF32 || args.x.dtype == DType::kBF16);
  if (args.x.shape[0] == 0) {
    return;
  }
  if (args.x.dtype == DType::kF32) {
    args.exact ? launch_gelu<float, true>(stream, args.x)
               : launch_gelu<float, false>(stream, args.x);
  } else {
    args.exact ? launch_gelu<Bf16, true>(stream, args.x) : launch_gelu<Bf16, false>(stream, args.x);
  }
}

}  // namespace warprow::cuda
