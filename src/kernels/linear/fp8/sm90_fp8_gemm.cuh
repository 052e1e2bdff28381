// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/cluster.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/cuda/wgmma_f8.cuh"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/round_inputs.cuh"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"
#include "kernels/linear/small_m/sm90_outputs.cuh"

#include <algorithm>
#include <cuda_runtime.h>

// Formula: as in linear.h with an e4m3 w and inputs that round_inputs has rounded. The sum of the numbers' products is
//   multiplied by the scale of w's row and by the token scale. With groups, the sum over each 128 inputs is multiplied by both
//   groups' scales, and the sum of these by the token scale.
// Shapes: w in units (fp8_tiles.h); x e4m3 [m, k] with scales (F8Rows), or one row in bf16; y bf16 or float32.
// Mapping: as sm90_gemm.cuh. A stage has 128 inputs: x, and tiles of w, by one copy each of TMA. The tensor cores sum 128
//   inputs from zero. CUDA cores add that to a float32 sum, since the tensor cores' accumulators have fewer bits; with 128
//   columns while the next stage's products run. If x is one row, each CTA rounds it itself, into shared memory, so that no
//   kernel runs between two products. With 128 columns and more tiles than SMs a CTA takes several tiles, or with parts of k
//   two warpgroups have 64 rows of w each.
// Bytes moved: w once, for more blocks mostly from L2; x from L2 once a tile. The kernel fills the ring with w before it
//   waits for the preceding kernel.
// Numerics: as above; float32 sums in the order of k; the parts of k in order. The order depends on n, k and the plan's split
//   alone.
// Preconditions: k a multiple of 8, n of 16, gated of 32; x 16-byte aligned; sm_90a.
// Origin: own design.
namespace warprow::cuda {

namespace sm90_fp8_detail {

using namespace sm90_gemm_detail;
using sm90_gemm_detail::Ring;

struct Fp8Params {
  Params p;
  F8Rows x;
  int64_t unit_bytes;
  int32_t stage_bytes;
  int32_t row_at;  // of the rounded row, in shared memory
  F8Inputs inputs;
  float input_scale;
};

// Warpgroups of consumers, each with 64 rows of w, and a warp that produces. Two warpgroups take registers from the producer's,
// which is whole for that.
template <int kCols, int kGroups = 1>
struct Threads {
  static constexpr int kConsumers = kGroups * 128;
  static constexpr bool kMovesRegisters = kGroups > 1;
  static constexpr int kAll = kConsumers + (kMovesRegisters ? 128 : 32);
  static constexpr int kCtas = kCols <= 32 ? 4 : 1;  // of an SM, at least
};

constexpr int kTileBytes = 64 * kFp8TileCols;  // of w, 64 rows
// Units of w in a half of a CTA's tile. A SwiGLU tile has two halves, of gate rows and of their up rows; others have one.
__host__ __device__ constexpr int fp8_half_units(LinearEpilogue epilogue) {
  return epilogue == LinearEpilogue::kSwiGlu ? 2 : 4;
}
template <int kCols>
constexpr bool kSumsShareRing = kCols == 128;

// A stage: w, x, then the scales of groups of both.
template <int kCols, bool kRounds, int kGroups = 1>
struct Stage {
  static constexpr int kWBytes = kGroups * kTileBytes;
  static constexpr int kXAt = kWBytes;
  static constexpr int kXBytes = kRounds ? 0 : kCols * kFp8TileCols;
  static constexpr int kWScalesAt = kXAt + kXBytes;
  static constexpr int kXScalesAt = kWScalesAt + kGroups * 256;
};

struct Maps {
  CUtensorMap x;
  CUtensorMap w;  // [halves][units][tiles][a tile, as doubles]: gate and up rows, or one half
  CUtensorMap w_scales;  // of groups: [halves][units][tiles][16]
};

// The producer, one thread: loads tiles of w and x, and scales of groups. One copy loads all rows of w of a stage.
template <int kCols, bool kRounds, int kGroups = 1>
struct Producer {
  using S = Stage<kCols, kRounds, kGroups>;
  const Fp8Params& q;
  const Maps& maps;
  const Place& at;
  bool grouped;
  int unit;   // of 16 rows, the first of a half
  int bytes;  // of a stage

  __device__ Producer(const Fp8Params& params, const Maps& of_maps, const Place& place)
      : q(params),
        maps(of_maps),
        at(place),
        grouped(params.inputs == F8Inputs::kGroup),
        unit(place.tile * kGroups * fp8_half_units(params.p.a.epilogue)),
        bytes(S::kWBytes + S::kXBytes + (grouped ? kGroups * 256 + (kRounds ? 0 : kCols * 4) : 0)) {
  }

  __device__ void load_w(const Ring& ring, int step, uint64_t policy) const {
    const uint32_t stage = ring.data + ring.stage * q.stage_bytes;
    const int tile = at.first + step;
    barrier_arrive_expecting(ring.full(), bytes);
    tma_load_4d(stage, maps.w, ring.full(), 0, tile, unit, 0, policy);
    if (grouped) {
      tma_load_4d(stage + S::kWScalesAt, maps.w_scales, ring.full(), 0, tile, unit, 0, policy);
    }
  }
  __device__ void load_x(const Ring& ring, int step) const {
    const uint32_t stage = ring.data + ring.stage * q.stage_bytes;
    tma_load_2d(
        stage + S::kXAt, maps.x, ring.full(), (at.first + step) * kFp8TileCols, at.block_row);
    if (grouped) {
      bulk_load(stage + S::kXScalesAt,
                q.x.group_scales + (at.first + step) * q.x.group_stride + at.block_row,
                kCols * 4,
                ring.full(),
                read_again());
    }
  }
  // Fills the ring for the first time, with w only.
  __device__ void start(Ring ring, uint64_t policy) const {
    fetch_map(maps.w);
    for (int step = 0; step < min(ring.stages, at.num_steps); ++step, ring.next()) {
      load_w(ring, step, policy);
    }
    if constexpr (!kRounds) {
      fetch_map(maps.x);
    }
  }
  // All stages of a tile that is not the CTA's first, or x of the first fill and then whole stages.
  __device__ void run_tile(Ring& ring, uint64_t policy, bool first) const {
    for (int step = 0; step < at.num_steps; ++step, ring.next()) {
      if (!first || step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_w(ring, step, policy);
      }
      load_x(ring, step);
    }
  }
  // Loads x for the first fill, then whole stages as they become free.
  __device__ void run(Ring ring, uint64_t policy) const {
    for (int step = kRounds ? ring.stages : 0; step < at.num_steps; ++step, ring.next()) {
      if (kRounds && step == ring.stages) {
        ring.phase ^= 1;
      }
      if (step >= ring.stages) {
        barrier_wait(ring.empty(), ring.phase ^ 1);
        load_w(ring, step, policy);
      }
      if constexpr (!kRounds) {
        load_x(ring, step);
      }
    }
  }
};

// A warpgroup's products with 64 rows of w.
template <int kCols, bool kRounds, int kGroups = 1>
class Multiplier {
 public:
  using S = Stage<kCols, kRounds, kGroups>;
  // row: the rounded row, then its groups' scales.
  __device__ Multiplier(const Fp8Params& q, uint32_t row, uint32_t row_scales)
      : stage_bytes_(q.stage_bytes),
        grouped_(q.inputs == F8Inputs::kGroup),
        row_(row),
        row_scales_(row_scales),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        group_(kGroups == 1 ? 0 : warp_uniform(static_cast<int>(threadIdx.x) / 128)) {}

  // ring: becomes that behind these steps.
  __device__ void run(int steps, Ring& ring, float (&sum)[kCols / 2]) const {
    if constexpr (kCols == 128) {
      run_overlapped(warp_uniform(steps), ring, sum);
    } else {
      run_in_pairs(warp_uniform(steps), ring, sum);
    }
  }

 private:
  // Few columns leave the tensor cores idle between two steps, so they get two at once.
  __device__ __forceinline__ void run_in_pairs(int steps,
                                               Ring& ring,
                                               float (&sum)[kCols / 2]) const {
    float part[2][kCols / 2];
    int step = 0;
    for (; step + 2 <= steps; step += 2) {
      Ring last = ring;
      last.next();
      wait(ring);
      wait(last);
      wgmma_fence();
      multiply(ring, step, part[0]);
      multiply(last, step + 1, part[1]);
      wgmma_commit();
      wgmma_wait<0>();
      add(ring, step, part[0], sum);
      add(last, step + 1, part[1], sum);
      ring = last;
      ring.next();
    }
    if (step < steps) {
      begin(ring, step, part[0]);
      wgmma_wait<0>();
      add(ring, step, part[0], sum);
      ring.next();
    }
  }

  // With many columns the products of a step are added while the next ones run.
  __device__ __forceinline__ void run_overlapped(int steps,
                                                 Ring& ring,
                                                 float (&sum)[kCols / 2]) const {
    if (steps == 0) {
      return;
    }
    float part[2][kCols / 2];
    Ring behind = ring;
    const auto begin_next = [&](int step, float(&to)[kCols / 2]) {
      begin(ring, step, to);
      ring.next();
    };
    const auto add_next = [&](int step, float(&from)[kCols / 2]) {
      add(behind, step, from, sum);
      behind.next();
    };
    begin_next(0, part[0]);
    int step = 0;
    for (; step + 2 < steps; step += 2) {
      begin_next(step + 1, part[1]);
      wgmma_wait<1>();
      add_next(step, part[0]);
      begin_next(step + 2, part[0]);
      wgmma_wait<1>();
      add_next(step + 1, part[1]);
    }
    if (step + 1 < steps) {
      begin_next(step + 1, part[1]);
      wgmma_wait<1>();
      add_next(step, part[0]);
      wgmma_wait<0>();
      add_next(step + 1, part[1]);
    } else {
      wgmma_wait<0>();
      add_next(step, part[0]);
    }
  }

  __device__ __forceinline__ void begin(const Ring& ring,
                                        int step,
                                        float (&part)[kCols / 2]) const {
    wait(ring);
    wgmma_fence();
    multiply(ring, step, part);
    wgmma_commit();
  }
  [[nodiscard]] __device__ uint32_t stage(const Ring& ring) const {
    return ring.data + ring.stage * stage_bytes_;
  }

  __device__ __forceinline__ static void wait(const Ring& ring) {
    barrier_wait(ring.full(), ring.phase);
  }

  __device__ __forceinline__ void multiply(const Ring& ring,
                                           int step,
                                           float (&part)[kCols / 2]) const {
    const uint64_t w = wgmma_operand(stage(ring) + group_ * kTileBytes, 1024, 16);
    const uint64_t x = kRounds ? wgmma_plain_operand(row_ + step * kFp8TileCols, 16)
                               : wgmma_operand(stage(ring) + S::kXAt, 1024, 16);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      wgmma_f8(part, further_operand(w, i * 32), further_operand(x, i * 32), i > 0);
    }
  }
  // Adds the products of a stage, and releases it.
  __device__ __forceinline__ void add(const Ring& ring,
                                      int step,
                                      float (&part)[kCols / 2],
                                      float (&sum)[kCols / 2]) const {
    wgmma_pin(part);
    if (grouped_) {
      const uint32_t w = stage(ring) + S::kWScalesAt + warp_ * 64 + lane_ / 4 * 4;
      const float of_w[2] = {__uint_as_float(load_shared(w)), __uint_as_float(load_shared(w + 32))};
#pragma unroll
      for (int i = 0; i < kCols / 8; ++i) {
        float of_x[2];
        const uint32_t x =
            kRounds ? row_scales_ + step * 4 : stage(ring) + S::kXScalesAt + i * 32 + lane_ % 4 * 8;
        of_x[0] = __uint_as_float(load_shared(x));
        of_x[1] = kRounds ? of_x[0] : __uint_as_float(load_shared(x + 4));
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          float& to = sum[i * 4 + j];
          to = __fmaf_rn(part[i * 4 + j], __fmul_rn(of_w[j / 2], of_x[j % 2]), to);
        }
      }
      fence_async_proxy();  // scales were read by ld.shared
    } else {
#pragma unroll
      for (int i = 0; i < kCols / 2; ++i) {
        sum[i] = __fadd_rn(sum[i], part[i]);
      }
    }
    __syncwarp();
    if (lane_ == 0) {
      barrier_arrive(ring.empty());
    }
  }

  int stage_bytes_;
  bool grouped_;
  uint32_t row_;
  uint32_t row_scales_;
  int lane_;
  int warp_;
  int group_;
};

// The only row of x, of which 128 threads round the CTA's part.
class OnlyRow {
 public:
  // Starts to load the row's beginning, so that this overlaps the read of the norm's squares.
  __device__ explicit OnlyRow(const Fp8Params& q)
      : q_(q),
        x_(static_cast<const uint4*>(q.p.a.x)),
        chunks_(q.p.a.k / 8),
        thread_(static_cast<int>(threadIdx.x)) {
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      held_[h] = chunk(thread_ + h * 128);
    }
  }

  // Numbers go to `row`, and scales of groups to `row_scales`. Returns the token scale without the norm, in all threads. rms: of
  // the row, or 1.
  __device__ __forceinline__ float round(const Place& at,
                                         unsigned char* row,
                                         float* row_scales,
                                         float rms) const {
    const int first = at.first * 16;
    const int end = first + at.num_steps * 16;
    auto* out = reinterpret_cast<uint2*>(row);
    if (q_.inputs == F8Inputs::kGroup) {
      for (int i = first + thread_; i < end; i += 128) {  // whole groups of 16 lanes
        const uint4 v = chunk(i);
        const unsigned lanes = 0xffffU << (thread_ & 16);
        uint32_t most = larger_half(larger_magnitudes(0, v));
#pragma unroll
        for (int far = 8; far > 0; far /= 2) {
          most = max(most, __shfl_xor_sync(lanes, most, far));
        }
        const F8Scale scale = f8_scale(most);
        out[i - first] = rounded_eight(v, 1.0F, scale.factor);
        if (i % 16 == 0) {
          row_scales[(i - first) / 16] = scale.scale;
        }
      }
      return 1.0F;
    }
    const bool fixed = q_.inputs == F8Inputs::kStatic;
    const F8Scale scale =
        fixed ? F8Scale{__fdiv_rn(1.0F, q_.input_scale), q_.input_scale} : f8_scale(largest());
    const float before = fixed ? rms : 1.0F;
    if (first == 0) {
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (thread_ + h * 128 < end) {
          out[thread_ + h * 128] = rounded_eight(held_[h], before, scale.factor);
        }
      }
    }
#pragma unroll 4
    for (int i = (first == 0 ? kHeld * 128 : first) + thread_; i < end; i += 128) {
      out[i - first] = rounded_eight(chunk(i), before, scale.factor);
    }
    return scale.scale;
  }

 private:
  static constexpr int kHeld = 4;  // chunks of 8 inputs

  [[nodiscard]] __device__ uint4 chunk(int i) const { return i < chunks_ ? x_[i] : uint4{}; }

  // The row's largest magnitude, as the bits of a float32, in all threads.
  [[nodiscard]] __device__ uint32_t largest() const {
    __shared__ uint32_t most_of[4];
    uint32_t most = 0;
#pragma unroll
    for (int h = 0; h < kHeld; ++h) {
      most = larger_magnitudes(most, held_[h]);
    }
#pragma unroll 4
    for (int i = thread_ + kHeld * 128; i < chunks_; i += 128) {
      most = larger_magnitudes(most, x_[i]);
    }
    most = __reduce_max_sync(~0U, larger_half(most));
    if (thread_ % 32 == 0) {
      most_of[thread_ / 32] = most;
    }
    named_sync(1, 128);
    return max(max(most_of[0], most_of[1]), max(most_of[2], most_of[3]));
  }

  const Fp8Params& q_;
  const uint4* x_;
  int chunks_;
  int thread_;
  uint4 held_[kHeld];
};

template <int kCols, bool kRounds, int kGroups>
__global__ void __launch_bounds__(Threads<kCols, kGroups>::kAll, Threads<kCols>::kCtas)
sm90_fp8_kernel(const __grid_constant__ Fp8Params q, const __grid_constant__ Maps maps) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using T = Threads<kCols, kGroups>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxSm90GemmStages + 1];
  __shared__ float scales[kCols];
  const Params& p = q.p;
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const Place at(p, kCols, kFp8TileCols);
  const Ring ring{shared_address(data), shared_address(barriers), p.stages};
  const uint32_t parts_barrier = ring.barriers + 2 * kMaxSm90GemmStages * 8;
  const bool alone = p.split == 1;
  const bool produces = threadIdx.x / 32 == T::kConsumers / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const Producer<kCols, kRounds, kGroups> producer(q, maps, at);
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
    if (lane == 0) {
#pragma unroll 1
      for (int i = 0; i < p.stages; ++i) {
        barrier_init(ring.barriers + i * 8, 1);
        barrier_init(ring.barriers + (kMaxSm90GemmStages + i) * 8, 4 * kGroups);
      }
      barrier_init(parts_barrier, 1);
      publish_barriers();
      fence_async_proxy();
    }
    __syncwarp();
    if (elect_one()) {
      producer.start(ring, policy);
      // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
      // ends after the kernels before it.
      pdl_release();
    }
  }
  __syncwarp();
  if (alone) {
    __syncthreads();
  } else {
    cluster_arrive();
    cluster_wait();
  }
  if (threadIdx.x >= T::kConsumers) {
    if constexpr (T::kMovesRegisters) {
      lower_registers<24>();
    }
    if (produces) {
      if constexpr (!kRounds) {  // else it loads only w, which no kernel writes
        pdl_wait();
      }
      if (elect_one()) {
        producer.run(ring, policy);
      }
    }
    __syncwarp();
    if (!alone) {
      if constexpr (kSumsShareRing<kCols>) {
        cluster_arrive();
        cluster_wait();
      }
      cluster_arrive();
    }
  } else {
    if constexpr (T::kMovesRegisters) {
      raise_registers<240>();
    }
    Outputs<kCols, kGroups, true> outputs(p, at, data, scales);
    outputs.set_w_scales({static_cast<const std::byte*>(p.a.w) + fp8_scales_at(p.a.k),
                          q.unit_bytes,
                          q.inputs == F8Inputs::kGroup});
    outputs.fetch_constants();
    pdl_wait();
    outputs.fetch_old();
    float* row_scales = nullptr;
    if constexpr (kRounds) {
      unsigned char* row = data + q.row_at;
      row_scales = reinterpret_cast<float*>(row + at.num_steps * kFp8TileCols + 256);
      const OnlyRow x(q);
      const float rms = p.a.squares == nullptr
                            ? 1.0F
                            : inverse_rms<8>(reinterpret_cast<const float4*>(p.a.squares),
                                             p.a.k / 64,
                                             lane % 4,
                                             static_cast<float>(p.a.k),
                                             p.a.norm_eps);
      const float scale = x.round(at, row, row_scales, rms);
      if (threadIdx.x == 0) {
        scales[0] = q.inputs == F8Inputs::kStatic ? scale : __fmul_rn(scale, rms);
      }
      fence_async_proxy();
      named_sync(1, T::kConsumers);
    } else if (static_cast<int>(threadIdx.x) < at.num_rows) {
      scales[threadIdx.x] = q.x.token_scales[at.row(static_cast<int>(threadIdx.x))];
    }
    float sum[kCols / 2] = {};
    Ring at_first = ring;
    Multiplier<kCols, kRounds, kGroups>(
        q, ring.data + q.row_at, kRounds ? shared_address(row_scales) : 0)
        .run(at.num_steps, at_first, sum);
    named_sync(1, T::kConsumers);  // the ring is free: sums reuse its memory
    store_partial_sums<kCols, kGroups>(data, sum);
    if (p.split > 1) {
      fence_async_proxy();
      named_sync(1, T::kConsumers);
      if constexpr (kSumsShareRing<kCols>) {  // until others' rings are free too
        cluster_arrive();
        cluster_wait();
      }
      if (threadIdx.x == 0) {
        exchange_sums<kCols, kGroups>(p, at, ring.data, parts_barrier);
      }
      __syncwarp();
      barrier_wait(parts_barrier, 0);
      __syncwarp();
    } else {
      named_sync(1, T::kConsumers);
    }
    if (!alone) {
      cluster_arrive();
    }
    outputs.finish();
    __syncwarp();
  }
  if (!alone) {  // others may still write to this CTA's barriers or copy its sums
    cluster_wait();
  }
#endif
}

// The same for one part, with CTAs that take several tiles: the next one's loads begin while the outputs of one are written.
// Sums have memory behind the ring.
template <int kCols>
__global__ void __launch_bounds__(Threads<kCols>::kAll, 1) sm90_fp8_resident_kernel(
    const __grid_constant__ Fp8Params q, const __grid_constant__ Maps maps, int32_t num_tiles) {
#if __CUDA_ARCH_FEAT_SM90_ALL
  using T = Threads<kCols>;
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t barriers[2 * kMaxSm90GemmStages];
  __shared__ float scales[kCols];
  const Params& p = q.p;
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  Ring ring{shared_address(data), shared_address(barriers), p.stages};
  const auto place = [&](int index) { return Place(p, kCols, kFp8TileCols, index); };
  const auto first = static_cast<int>(blockIdx.x);
  const auto stride = static_cast<int>(gridDim.x);
  const bool produces = threadIdx.x == T::kConsumers;
  const uint64_t policy = p.blocks == 1 ? read_once() : read_again();
  if (produces) {
#pragma unroll 1
    for (int i = 0; i < p.stages; ++i) {
      barrier_init(ring.barriers + i * 8, 1);
      barrier_init(ring.barriers + (kMaxSm90GemmStages + i) * 8, 4);
    }
    fence_async_proxy();
    const Place at = place(first);
    Producer<kCols, false>(q, maps, at).start(ring, policy);
    pdl_release();
  }
  __syncthreads();
  if (threadIdx.x >= T::kConsumers) {
    pdl_wait();
    if (produces) {
      for (int index = first; index < num_tiles; index += stride) {
        const Place at = place(index);
        Producer<kCols, false>(q, maps, at).run_tile(ring, policy, index == first);
      }
    }
    return;
  }
  const Multiplier<kCols, false> multiplier(q, 0, 0);
  for (int index = first; index < num_tiles; index += stride) {
    const Place at = place(index);
    Outputs<kCols, 1, true> outputs(p, at, data + p.parts_at, scales);
    outputs.set_w_scales({static_cast<const std::byte*>(p.a.w) + fp8_scales_at(p.a.k),
                          q.unit_bytes,
                          q.inputs == F8Inputs::kGroup});
    outputs.fetch_constants();
    if (index == first) {
      pdl_wait();
    } else {
      named_sync(1, T::kConsumers);  // all have read the sums and scales of the tile before
    }
    outputs.fetch_old();
    if (static_cast<int>(threadIdx.x) < at.num_rows) {
      scales[threadIdx.x] = q.x.token_scales[at.row(static_cast<int>(threadIdx.x))];
    }
    float sum[kCols / 2] = {};
    multiplier.run(at.num_steps, ring, sum);
    store_partial_sums<kCols, 1>(data + p.parts_at, sum);
    named_sync(1, T::kConsumers);
    outputs.finish();
  }
#endif
}

}  // namespace sm90_fp8_detail

template <int kCols, bool kRounds, int kGroups>
void launch_sm90_fp8(Stream& stream,
                     const Sm90Fp8Args& args,
                     const PackedWeight& weight,
                     const Sm90Fp8Plan& plan) {
  using S = sm90_gemm_detail::Sizes<kCols, kGroups>;
  constexpr auto* kKernel = &sm90_fp8_detail::sm90_fp8_kernel<kCols, kRounds, kGroups>;
  const Sm90GemmArgs& a = args.a;
  const size_t shared_bytes = sm90_fp8_shared_bytes(plan, a.k);
  allow_shared_bytes<kKernel>(shared_bytes);
  const bool gate = a.epilogue == LinearEpilogue::kSwiGlu;
  const int32_t outputs = gate ? a.n / 2 : a.n;
  const int32_t tiles = ceil_div(outputs, gate ? S::kRows / 2 : S::kRows);
  const sm90_fp8_detail::Fp8Params params{
      sm90_gemm_detail::params_of(a, kCols, plan.split, plan.stages, sm90_fp8_parts_at(plan)),
      args.x,
      fp8_unit_bytes(a.k, weight.inputs == F8Inputs::kGroup),
      sm90_fp8_stage_bytes(plan),
      sm90_fp8_row_at(plan),
      weight.inputs,
      weight.input_scale};
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[0].val.programmaticStreamSerializationAllowed = 1;
  attributes[1].id = cudaLaunchAttributeClusterDimension;
  attributes[1].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(tiles * params.p.blocks * plan.split));
  config.blockDim = dim3(sm90_fp8_detail::Threads<kCols, kGroups>::kAll);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = as_cuda(stream).handle();
  config.attrs = attributes;
  config.numAttrs = plan.split > 1 ? 2 : 1;
  const bool grouped = weight.inputs == F8Inputs::kGroup;
  const auto* w = static_cast<const std::byte*>(a.w);
  const uint64_t halves = gate ? 2 : 1;
  const uint64_t units = static_cast<uint64_t>(a.n / kFp8UnitRows) / halves;
  const auto k_tiles = static_cast<uint64_t>(fp8_tiles_of(a.k));
  const auto unit_bytes = static_cast<uint64_t>(params.unit_bytes);
  const auto half_units =
      static_cast<uint32_t>(kGroups * sm90_fp8_detail::fp8_half_units(a.epilogue));
  sm90_fp8_detail::Maps maps = {};
  maps.w = tensor_map<4>(w,
                         {kFp8TileBytes / 8, k_tiles, units, halves},
                         {kFp8TileBytes, unit_bytes, units * unit_bytes},
                         {kFp8TileBytes / 8, 1, half_units, static_cast<uint32_t>(halves)},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                         CU_TENSOR_MAP_DATA_TYPE_FLOAT64,
                         CU_TENSOR_MAP_SWIZZLE_NONE);
  if (grouped) {
    maps.w_scales = tensor_map<4>(w + fp8_scales_at(a.k),
                                  {16, k_tiles, units, halves},
                                  {64, unit_bytes, units * unit_bytes},
                                  {16, 1, half_units, static_cast<uint32_t>(halves)},
                                  CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                  CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
                                  CU_TENSOR_MAP_SWIZZLE_NONE);
  }
  if constexpr (!kRounds) {
    maps.x = tensor_map<2>(args.x.numbers,
                           {static_cast<uint64_t>(a.k), static_cast<uint64_t>(f8_padded_rows(a.m))},
                           {static_cast<uint64_t>(args.x.pitch)},
                           {kFp8TileCols, static_cast<uint32_t>(kCols)},
                           CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                           CU_TENSOR_MAP_DATA_TYPE_UINT8);
  }
  if constexpr (kCols == 128) {
    if (plan.resident) {
      constexpr auto* kResident = &sm90_fp8_detail::sm90_fp8_resident_kernel<kCols>;
      allow_shared_bytes<kResident>(shared_bytes);
      config.gridDim = dim3(static_cast<unsigned>(
          std::min(tiles * params.p.blocks, stream.device().facts().num_sms)));
      WR_CUDA(cudaLaunchKernelEx(&config, kResident, params, maps, tiles * params.p.blocks));
      as_cuda(stream).note_launch("sm90_fp8_resident");
      return;
    }
  }
  WR_CUDA(cudaLaunchKernelEx(&config, kKernel, params, maps));
  as_cuda(stream).note_launch("sm90_fp8_gemm");
}

template void launch_sm90_fp8<WR_COLS, false, 1>(Stream& stream,
                                                 const Sm90Fp8Args& args,
                                                 const PackedWeight& weight,
                                                 const Sm90Fp8Plan& plan);
#if WR_COLS == 8
template void launch_sm90_fp8<WR_COLS, true, 1>(Stream& stream,
                                                const Sm90Fp8Args& args,
                                                const PackedWeight& weight,
                                                const Sm90Fp8Plan& plan);
#elif WR_COLS == 128
template void launch_sm90_fp8<WR_COLS, false, 2>(Stream& stream,
                                                 const Sm90Fp8Args& args,
                                                 const PackedWeight& weight,
                                                 const Sm90Fp8Plan& plan);
#endif

}  // namespace warprow::cuda
