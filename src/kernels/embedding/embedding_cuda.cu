// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/embedding/embedding.h"

// Formula, shapes, preconditions: embedding.h. The table is bf16 or float32 [n, k], row-major; out is
// float32.
// Mapping: a CTA takes 128 groups of eight columns of one token, a thread one group.
// Bytes moved: 6 * num_toks * k; 8 * num_toks * k for given rows and a float32 table.
// Numerics: the table's values times the scale.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

template <typename T>
struct Rows {
  const int32_t* ids;
  const T* table;
  int32_t first_id;
  int32_t id_mask;
  int32_t num_ids;  // rows of the table
  int32_t width;
  float* out;
  int64_t out_stride;
  const float* given;  // or null
  int64_t given_stride;
  float scale;
};

template <typename T>
__device__ __forceinline__ bool known(const Rows<T>& a, int32_t id) {
  return id >= a.first_id && id - a.first_id < a.num_ids;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) look_up(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x) * kVec;
  if (column >= a.width) {
    return;
  }
  const int32_t id = a.ids[blockIdx.x] & a.id_mask;
  float v[kVec] = {};
  if (known(a, id)) {
    load8(a.table + int64_t{id - a.first_id} * a.width + column, v);
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      v[i] *= a.scale;
    }
  } else if (id < 0 && a.given != nullptr) {
    load8(a.given + blockIdx.x * a.given_stride + column, v);
  }
  store8(a.out + blockIdx.x * a.out_stride + column, v);
}

// For any width and alignment.
template <typename T>
__global__ void __launch_bounds__(kThreads) look_up_any_width(Rows<T> a) {
  pdl_wait();
  pdl_release();
  const int column = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  if (column >= a.width) {
    return;
  }
  const int32_t id = a.ids[blockIdx.x] & a.id_mask;
  const bool given = id < 0 && a.given != nullptr;
  float v = given ? a.given[blockIdx.x * a.given_stride + column] : 0.0F;
  if (known(a, id)) {
    v = to_float(a.table[int64_t{id - a.first_id} * a.width + column]) * a.scale;
  }
  a.out[blockIdx.x * a.out_stride + column] = v;
}

template <typename T>
void launch_look_up(Stream& stream, const EmbeddingArgs& args) {
  const Rows<T> rows{.ids = args.ids.data,
                     .table = reinterpret_cast<const T*>(args.table.data),
                     .first_id = args.first_id,
                     .id_mask = args.id_mask,
                     .num_ids = args.table.n,
                     .width = args.table.k,
                     .out = static_cast<float*>(args.out.data),
                     .out_stride = args.out.stride,
                     .given = args.given.data,
                     .given_stride = args.given.stride[0],
                     .scale = args.scale};
  const bool fits = rows.width % kVec == 0 && rows_fit_vec(rows.table, rows.width, sizeof(T)) &&
                    rows_fit_vec(rows.out, rows.out_stride, sizeof(float)) &&
                    rows_fit_vec(rows.given, rows.given_stride, sizeof(float));
  const int a_block = fits ? kThreads * kVec : kThreads;
  const LaunchShape shape{dim3(static_cast<unsigned>(args.ids.shape[0]),
                               static_cast<unsigned>(ceil_div(rows.width, a_block))),
                          kThreads};
  launch(stream, "embedding", shape, fits ? look_up<T> : look_up_any_width<T>, rows);
}

}  // namespace

void embedding(Stream& stream, const EmbeddingArgs& args) {
  WR_CHECK_EQ(args.ids.shape[0], args.out.shape[0]);
  WR_CHECK_EQ(args.out.shape[1], args.table.k);
  WR_CHECK(args.given.empty() ||
           (args.given.shape[0] == args.out.shape[0] && args.given.shape[1] == args.table.k));
  WR_CHECK(args.table.kind == PackedKind::kBF16 || args.table.kind == PackedKind::kF32);
  WR_CHECK(args.out.dtype == DType::kF32);
  if (args.ids.shape[0] == 0) {
    return;
  }
  if (args.table.kind == PackedKind::kF32) {
    launch_look_up<float>(stream, args);
  } else {
    launch_look_up<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
