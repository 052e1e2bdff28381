// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "base/math.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <algorithm>
#include <cstdint>

// Parts of a CTA of sm90_bf16_gemm_small_m (sm90_gemm.cuh): sizes, its place in the work, its ring.
namespace warprow::cuda::sm90_gemm_detail {

constexpr int kStepBytes = 128;  // 64 inputs of a row

template <int kCols, int kGroups>
struct Sizes {
  static constexpr int kRows = kGroups * 64;
  static constexpr int kConsumers = kGroups * 128;
  static constexpr int kThreads = kConsumers + 32;
  static constexpr int kWBytes = kRows * kStepBytes;
  static constexpr int kXBytes = kCols * kStepBytes;
  static constexpr int kStageBytes = kWBytes + kXBytes;
  static constexpr int kPitch = kRows + 4;  // floats in a row of sums; no bank conflicts
  static constexpr int kSumBytes = kCols * kPitch * 4;
};

struct Params {
  Sm90GemmArgs a;
  int32_t split;  // a power of two
  int32_t stages;
  int32_t parts_at;   // offset in shared memory of other CTAs' partial sums
  int32_t term_at;    // and of what a term adds, if there is one
  int32_t part_rows;  // rows of x in a block whose outputs one of `split` CTAs finishes
  int32_t blocks;     // of kCols rows of x
  bool vectors;       // y can be accessed as vectors of four
};

// Of a product in blocks of `cols` rows of x. A sum that does the first half of a norm must be stored as vectors.
inline Params params_of(
    const Sm90GemmArgs& a, int32_t cols, int32_t split, int32_t stages, int32_t parts_at) {
  const int32_t outputs = a.epilogue == LinearEpilogue::kSwiGlu ? a.n / 2 : a.n;
  const uintptr_t bytes = a.y_f32 ? 16 : 8;
  const bool vectors =
      outputs % 4 == 0 && a.y_stride % 4 == 0 && reinterpret_cast<uintptr_t>(a.y) % bytes == 0;
  WR_CHECK(vectors || a.next_weight == nullptr, "{} outputs, stride {}", outputs, a.y_stride);
  return {a,
          split,
          stages,
          parts_at,
          0,
          ceil_div(std::min(a.m, cols), split),
          ceil_div(a.m, cols),
          vectors};
}

// A CTA's place in the work. CTAs that share rows of w are neighbours.
struct Place {
  int part;       // of k: the CTA's rank in its cluster
  int tile;       // of w
  int first;      // steps of `step_inputs`
  int num_steps;  // of this part

  int block_row;  // of x: the first row of the CTA's block
  int m;          // rows of the block
  int first_row;  // of the block: the first row whose outputs this CTA finishes
  int num_rows;

  __device__ Place(const Params& p, int cols, int step_inputs = 64)
      : Place(p, cols, step_inputs, static_cast<int>(blockIdx.x)) {}
  // index: of the CTA that has the place, if each had one.
  __device__ Place(const Params& p, int cols, int step_inputs, int index) {
    part = p.split == 1 ? 0 : cluster_rank();
    const int log2_split = __ffs(p.split) - 1;
    const int tile_and_block = index >> log2_split;
    tile = p.blocks == 1 ? tile_and_block : tile_and_block / p.blocks;
    block_row = (tile_and_block - tile * p.blocks) * cols;
    m = min(cols, p.a.m - block_row);
    const int steps = (p.a.k + step_inputs - 1) / step_inputs;
    first = steps * part >> log2_split;
    num_steps = (steps * (part + 1) >> log2_split) - first;
    first_row = min(part * p.part_rows, m);
    num_rows = rows_of(p, part);
  }
  [[nodiscard]] __device__ int rows_of(const Params& p, int of_part) const {
    return max(0, min(p.part_rows, m - of_part * p.part_rows));
  }
  // Row t of those that this CTA finishes.
  [[nodiscard]] __device__ int64_t row(int t) const { return block_row + first_row + t; }
};

using Ring = RingCursor<kMaxSm90GemmStages>;

// An address in shared memory that the compiler keeps in a register. By itself it computes such addresses again at each use,
// from a special register that takes long to read.
__device__ __forceinline__ uint32_t kept_address(const void* shared) {
  uint32_t address = shared_address(shared);
  asm("" : "+r"(address));
  return address;
}

// A warp: initialises the barriers of the ring, whose stages are filled by one thread and read by `users`, and the one for
// other CTAs' sums.
__device__ __forceinline__ void init_barriers(const Ring& ring,
                                              uint32_t users,
                                              uint32_t parts_barrier,
                                              int lane) {
  if (lane < ring.stages) {
    barrier_init(ring.barriers + lane * 8, 1);
    barrier_init(ring.barriers + (kMaxSm90GemmStages + lane) * 8, users);
  }
  if (lane == 31) {
    barrier_init(parts_barrier, 1);
  }
  publish_barriers();
  fence_async_proxy();
}

}  // namespace warprow::cuda::sm90_gemm_detail
