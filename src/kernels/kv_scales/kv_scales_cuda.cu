// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/kv_scales/kv_scales.h"

// Formula, shapes, preconditions: kv_scales.h.
// Mapping: a CTA a head; its threads take elements of all tokens in turn.
// Bytes moved: T * H * head_dim elements read.
// Numerics: exact.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct Rows {
  const T* x;
  int64_t stride;
  const int64_t* slots;
  float* scales;
  int32_t num_toks;
  int32_t dim;
  float most;
};

template <typename T>
__global__ void __launch_bounds__(kThreads) find_scales(Rows<T> a) {
  __shared__ uint32_t peak;  // bits of a float that is not negative have its order
  if (threadIdx.x == 0) {
    peak = 0;
  }
  __syncthreads();
  pdl_wait();
  pdl_release();
  float mine = 0.0F;
  for (int32_t i = threadIdx.x; i < a.num_toks * a.dim; i += kThreads) {
    const int32_t tok = i / a.dim;
    if (a.slots[tok] >= 0) {
      mine = fmaxf(mine, fabsf(to_float(a.x[tok * a.stride + blockIdx.x * a.dim + i % a.dim])));
    }
  }
  atomicMax(&peak, __float_as_uint(mine));
  __syncthreads();
  if (threadIdx.x == 0) {
    a.scales[blockIdx.x] = kv_scale_of(__uint_as_float(peak), a.most);
  }
}

template <typename T>
void launch_as(Stream& stream, const KvScalesArgs& args) {
  const auto num_heads = static_cast<unsigned>(args.scales.shape[0]);
  const Rows<T> rows{.x = static_cast<const T*>(args.x.data),
                     .stride = args.x.stride,
                     .slots = args.slot_mapping.data,
                     .scales = args.scales.data,
                     .num_toks = static_cast<int32_t>(args.x.shape[0]),
                     .dim = static_cast<int32_t>(args.x.shape[1] / args.scales.shape[0]),
                     .most = args.most};
  launch(stream, "kv_scales", {num_heads, kThreads}, find_scales<T>, rows);
}

}  // namespace

void kv_scales(Stream& stream, const KvScalesArgs& args) {
  WR_CHECK_EQ(args.x.shape[1] % args.scales.shape[0], 0);
  WR_CHECK_EQ(args.slot_mapping.shape[0], args.x.shape[0]);
  if (args.x.dtype == DType::kF32) {
    launch_as<float>(stream, args);
  } else {
    launch_as<Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
