// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "device/cuda/driver.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/wide_cuda.h"
#include "kernels/linear/wide_ptx.cuh"

#include <atomic>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Formula: y[t, j] = bias[j] + sum over i of w[j, i] * x[t, i], or y += it.
// Shapes: w bf16 [n, k]; x bf16 [m, k], m up to 128; y bf16 or float32.
// Mapping: a block has a tile of 64 rows of w and all rows of x; where there are few tiles, `split`
//   blocks of a cluster share one, each with a part of k. One warp brings w and x, 64 inputs at a
//   time, through a ring of stages by the copy engine. A warpgroup multiplies: rows of w are the
//   matrix unit's m, rows of x its n. Sums go through shared memory; of a shared tile each block
//   finishes every split-th row of x.
// Bytes moved: w once; x from L2 once a tile. The ring is filled with w before the kernel waits for
//   the one before it.
// Numerics: float32 sums in the order of k, then of its parts: an order set by n and k.
// Preconditions: k and x_stride multiples of 8; w and rows of x 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {
namespace wide_detail {

constexpr int kTileRows = 64;
constexpr int kStep = 64;              // inputs
constexpr int kRowBytes = 128;         // of a row of a step
constexpr int kConsumers = 128;        // threads
constexpr int kPitch = kTileRows + 4;  // floats of a row of sums: free of bank conflicts
constexpr int kTileBytes = kTileRows * kRowBytes;
constexpr int kMostSharedBytes = 226 * 1024;

template <int kCols>
constexpr int kStageBytes = kTileBytes + kCols * kRowBytes;

struct Params {
  WideArgs a;
  int32_t split;
  int32_t stages;
  bool vectors;  // four neighbours of y are one access
};

// This block's place in the work.
struct Place {
  int part;       // of k, and the rank in the cluster
  int first_row;  // of w
  int first_step;
  int num_steps;

  __device__ explicit Place(const Params& p) {
    part = p.split == 1 ? 0 : cluster_rank();
    first_row = static_cast<int>(blockIdx.x) / p.split * kTileRows;
    const int steps = (p.a.k + kStep - 1) / kStep;
    first_step = steps * part / p.split;
    num_steps = steps * (part + 1) / p.split - first_step;
  }
};

// A ring of stages with barriers, walked step by step.
struct Ring {
  uint32_t data;
  uint32_t barriers;  // full, then empty
  int stages;
  int stage = 0;
  uint32_t phase = 0;

  __device__ void next() {
    if (++stage == stages) {
      stage = 0;
      phase ^= 1;
    }
  }
  [[nodiscard]] __device__ uint32_t full() const { return barriers + stage * 8; }
  [[nodiscard]] __device__ uint32_t empty() const {
    return barriers + (kMaxWideStages + stage) * 8;
  }
};

// One thread: brings the tiles.
template <int kCols>
struct Producer {
  const CUtensorMap& w_map;
  const CUtensorMap& x_map;
  const Place& at;
  uint64_t policy;

  __device__ void bring_w(const Ring& ring, int step) const {
    const int col = (at.first_step + step) * kStep;
    barrier_arrive_expecting(ring.full(), kStageBytes<kCols>);
    copy_tile(
        ring.data + ring.stage * kStageBytes<kCols>, w_map, ring.full(), col, at.first_row, policy);
  }
  __device__ void bring_x(const Ring& ring, int step) const {
    copy_tile(ring.data + ring.stage * kStageBytes<kCols> + kTileBytes,
              x_map,
              ring.full(),
              (at.first_step + step) * kStep,
              0);
  }
  // The ring's first filling, with w alone.
  __device__ void start(Ring ring) const {
    for (int step = 0; step < min(ring.stages, at.num_steps); ++step, ring.next()) {
      bring_w(ring, step);
    }
  }
  __device__ void run(Ring ring) const {
    for (int step = 0; step < at.num_steps; ++step, ring.next()) {
      if (step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        bring_w(ring, step);
      }
      bring_x(ring, step);
    }
  }
};

template <int kCols>
__device__ void multiply(int num_steps, Ring ring, float (&sum)[kCols / 2]) {
  const bool releases = threadIdx.x % 32 == 0;
  uint32_t used = 0;
  wgmma_pin(sum);
  for (int step = 0; step < num_steps; ++step, ring.next()) {
    barrier_wait(ring.full(), ring.phase);
    const uint32_t w = ring.data + ring.stage * kStageBytes<kCols>;
    const uint32_t x = w + kTileBytes;
    wgmma_fence();
#pragma unroll
    for (int i = 0; i < kStep / 16; ++i) {
      wgmma(sum, wgmma_operand(w + i * 32, 1024, 16), wgmma_operand(x + i * 32, 1024, 16));
    }
    wgmma_commit();
    wgmma_wait<1>();
    if (step > 0 && releases) {
      barrier_arrive(used);
    }
    used = ring.empty();
  }
  wgmma_wait<0>();
  wgmma_pin(sum);
}

// sums [kCols][kPitch] float32.
template <int kCols>
__device__ void leave_sums(unsigned char* sums, const float (&sum)[kCols / 2]) {
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  float* to = reinterpret_cast<float*>(sums) + threadIdx.x % 4 * 2 * kPitch + row;
#pragma unroll
  for (int i = 0; i < kCols / 2; ++i) {
    to[(i / 4 * 8 + i % 2) * kPitch + i / 2 % 2 * 8] = sum[i];
  }
}

// What becomes of the sums; four neighbours of a row of y at a time.
class Outputs {
 public:
  __device__ Outputs(const Params& p, const Place& at, uint32_t sums)
      : p_(p), at_(at), sums_(sums), count_((p.a.m - at.part + p.split - 1) / p.split * kFours) {}

  // What is added to, ahead of its use.
  __device__ void fetch_old(int first) {
#pragma unroll
    for (int j = 0; j < kAtOnce; ++j) {
      const int i = first + j * kConsumers;
      old_[j] = {};
      if (p_.a.add && i < count_) {
        old_[j] = load(static_cast<const float*>(p_.a.y) + place(i), output(i));
      }
    }
  }
  __device__ void finish() {
    for (int i = threadIdx.x; i < count_;) {
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j, i += kConsumers) {
        if (i < count_ && output(i) < p_.a.n) {
          finish_four(i, old_[j]);
        }
      }
      fetch_old(i);
    }
  }

 private:
  static constexpr int kAtOnce = 4;
  static constexpr int kFours = kTileRows / 4;

  [[nodiscard]] __device__ int token(int i) const { return i / kFours * p_.split + at_.part; }
  [[nodiscard]] __device__ int output(int i) const { return at_.first_row + i % kFours * 4; }
  [[nodiscard]] __device__ int64_t place(int i) const {
    return token(i) * p_.a.y_stride + output(i);
  }

  __device__ float4 load(const float* from, int output) const {
    float4 v = {};
    if (p_.vectors) {
      return output < p_.a.n ? *reinterpret_cast<const float4*>(from) : v;
    }
    v.x = output < p_.a.n ? from[0] : 0.0F;
    v.y = output + 1 < p_.a.n ? from[1] : 0.0F;
    v.z = output + 2 < p_.a.n ? from[2] : 0.0F;
    v.w = output + 3 < p_.a.n ? from[3] : 0.0F;
    return v;
  }

  // All parts are asked for before the first is added.
  __device__ float4 total(int i) const {
    const uint32_t from = sums_ + (token(i) * kPitch + i % kFours * 4) * 4;
    float4 parts[kMaxWideSplit];
#pragma unroll
    for (int part = 0; part < kMaxWideSplit; ++part) {
      if (part < p_.split) {
        parts[part] = remote_load(remote_address(from, part));
      }
    }
    float4 v = parts[0];
#pragma unroll
    for (int part = 1; part < kMaxWideSplit; ++part) {
      if (part < p_.split) {
        v.x += parts[part].x;
        v.y += parts[part].y;
        v.z += parts[part].z;
        v.w += parts[part].w;
      }
    }
    return v;
  }

  __device__ void finish_four(int i, const float4& old) const {
    float4 v = total(i);
    if (p_.a.bias != nullptr) {
      const int last = p_.a.n - 1;  // what lies behind is not stored
      v.x += __ldg(p_.a.bias + output(i));
      v.y += __ldg(p_.a.bias + min(output(i) + 1, last));
      v.z += __ldg(p_.a.bias + min(output(i) + 2, last));
      v.w += __ldg(p_.a.bias + min(output(i) + 3, last));
    }
    v = {v.x + old.x, v.y + old.y, v.z + old.z, v.w + old.w};
    if (p_.a.y_f32) {
      store(static_cast<float*>(p_.a.y) + place(i), v, output(i));
    } else {
      store(static_cast<__nv_bfloat16*>(p_.a.y) + place(i), v, output(i));
    }
  }

  template <typename T>
  __device__ void store(T* to, const float4& v, int output) const {
    struct alignas(4 * sizeof(T)) Four {
      T v[4];
    };
    const Four four = {{T(v.x), T(v.y), T(v.z), T(v.w)}};
    if (p_.vectors) {
      *reinterpret_cast<Four*>(to) = four;
      return;
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (output + i < p_.a.n) {
        to[i] = four.v[i];
      }
    }
  }

  const Params& p_;
  const Place& at_;
  uint32_t sums_;
  int count_;
  float4 old_[kAtOnce];
};

template <int kCols>
__global__ void __launch_bounds__(kConsumers + 32) wide_kernel(
    const __grid_constant__ Params p,
    const __grid_constant__ CUtensorMap w_map,
    const __grid_constant__ CUtensorMap x_map) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxWideStages];
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Place at(p);
  const Ring ring{shared_address(data), shared_address(barriers), p.stages};
  const bool produces = threadIdx.x == kConsumers;
  const Producer<kCols> producer{w_map, x_map, at, read_once()};
  if (produces) {
    fetch_map(w_map);
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (kMaxWideStages + i) * 8, kConsumers / 32);
    }
    publish_barriers();
    fence_async_proxy();
    producer.start(ring);
    fetch_map(x_map);
    // Whatever starts now only fills its own ring before it waits for this kernel, and this kernel
    // ends after the ones before it.
    pdl_release();
  }
  __syncthreads();
  pdl_wait();
  Outputs outputs(p, at, ring.data);
  if (threadIdx.x >= kConsumers) {
    if (produces) {
      producer.run(ring);
    }
    __syncwarp();
  } else {
    outputs.fetch_old(threadIdx.x);
    float sum[kCols / 2] = {};
    multiply<kCols>(at.num_steps, ring, sum);
    named_sync(1, kConsumers);  // the ring has been read and becomes room for sums
    leave_sums<kCols>(data, sum);
  }
  if (p.split == 1) {
    __syncthreads();
  } else {
    cluster_sync();
  }
  if (threadIdx.x < kConsumers) {
    outputs.finish();
  }
  if (p.split > 1) {  // others may still read this block's sums
    __syncwarp();
    cluster_meet();
  }
#endif
}

// A bf16 matrix as the copy engine sees it: boxes of a step's inputs, swizzled by 128 bytes, zeros
// outside. Made on the host; nothing is allocated.
CUtensorMap map_of(const void* data, int64_t rows, int64_t cols, int64_t stride, int box_rows) {
  CUtensorMap map;
  const cuuint64_t dims[2] = {static_cast<cuuint64_t>(cols), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(stride) * 2};
  const cuuint32_t box[2] = {kStep, static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  WR_CU(driver().encode_tiled(&map,
                              CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                              2,
                              const_cast<void*>(data),
                              dims,
                              strides,
                              box,
                              steps,
                              CU_TENSOR_MAP_INTERLEAVE_NONE,
                              CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                              CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE));
  return map;
}

template <int kCols>
void raise_shared_limit() {
  static std::atomic<uint64_t> raised{0};  // by device
  int device = 0;
  WR_CUDA(cudaGetDevice(&device));
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((raised.load(std::memory_order_relaxed) & bit) == 0) {
    WR_CUDA(cudaFuncSetAttribute(
        wide_kernel<kCols>, cudaFuncAttributeMaxDynamicSharedMemorySize, kMostSharedBytes));
    raised.fetch_or(bit, std::memory_order_relaxed);
  }
}

}  // namespace wide_detail

template <int kCols>
void launch_wide(Stream& stream, const WideArgs& args, const WidePlan& plan) {
  using namespace wide_detail;
  raise_shared_limit<kCols>();
  const uintptr_t four = args.y_f32 ? 16 : 8;  // bytes of four neighbours of y
  const bool vectors =
      args.n % 4 == 0 && args.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(args.y) % four == 0;
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(ceil_div(args.n, kTileRows) * plan.split));
  config.blockDim = dim3(kConsumers + 32);
  config.dynamicSmemBytes = plan.shared_bytes;
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  WR_CUDA(cudaLaunchKernelEx(&config,
                             wide_kernel<kCols>,
                             Params{args, plan.split, plan.stages, vectors},
                             map_of(args.w, args.n, args.k, args.k, kTileRows),
                             map_of(args.x, args.m, args.k, args.x_stride, kCols)));
  as_cuda(stream).note_launch("wide");
}

template void launch_wide<32>(Stream& stream, const WideArgs& args, const WidePlan& plan);
template void launch_wide<64>(Stream& stream, const WideArgs& args, const WidePlan& plan);
template void launch_wide<128>(Stream& stream, const WideArgs& args, const WidePlan& plan);

}  // namespace warprow::cuda
