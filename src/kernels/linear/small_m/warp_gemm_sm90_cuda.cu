// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "device/cuda/tensor_map.h"
#include "kernels/cuda/pipeline.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/tma.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm90_warp_gemm.h"

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Formula: as in linear.h, for up to 8 rows of x that are normalised, or half-normalised.
// Shapes: w bf16 [n, k]; x bf16 [m, k]; y bf16 or float32.
// Mapping: a warp has one part of k of a unit, which is 16 rows of w: one chain of m16n8k16 with rows of w as m and rows of
//   x as n. A group of warps has all parts of a unit; one of them in turn adds the partial sums, which are in shared
//   memory, and writes the outputs. Every warp has its own ring of stages of 256 inputs, which it fills by TMA, across the
//   ends of units: one copy of w and one of x a stage, since the chain waits while its warp starts a copy. One more warp
//   computes 1 / rms of the rows.
// Bytes moved: w once; x from L2 once a unit. The kernel fills the rings with w before it waits for the preceding kernel.
// Numerics: float32 sums in the order of k; the parts of k in order. As sm90_bf16_gemm_small_m with an equal split, bit for
//   bit.
// Preconditions: k a multiple of 64, x_stride of 8; w and x 16-byte aligned, rows of y too; sm_90.
// Origin: own design.
namespace warprow::cuda {
namespace {

constexpr int kStepBytes = kSm90WarpUnit * 128;       // of w: 64 inputs of a row are 128 bytes
constexpr int kWBytes = kSm90WarpSteps * kStepBytes;  // of a stage
constexpr int kPitch = 20;         // floats of a row of partial sums; no bank conflicts
constexpr int kSums = 8 * kPitch;  // floats of a warp
constexpr int kThreads = (kMaxSm90Warps + 1) * 32;

struct Params {
  Sm90GemmArgs a;
  int32_t parts;
  int32_t groups;
  int32_t stages;
  int32_t num_units;
  bool gate;
  bool leaves_norm;
};

// The operands of 32 inputs, as m16n8k16 takes them.
struct Operands {
  uint32_t w[2][4];
  uint32_t x[4];
};

// The warps' shared memory, in this order: stages of w, stages of x, barriers, partial sums; of the sums a second copy, if a
// group has more than one unit.
struct Memory {
  uint32_t w;
  uint32_t x;
  uint32_t barriers;
  float* sums;

  __device__ Memory(const Params& p, unsigned char* data) {
    const int stages = p.parts * p.groups * p.stages;
    w = shared_address(data);
    x = w + stages * kWBytes;
    barriers = x + stages * sm90_warp_x_bytes(p.a.m);
    const uint32_t end = barriers + (stages * 8 + 15) / 16 * 16;
    sums = reinterpret_cast<float*>(data + (end - w));
  }
};

// A warp that multiplies: a part of k of every unit of its group.
class Multiplier {
 public:
  __device__ Multiplier(const Params& p,
                        const CUtensorMap& w_map,
                        const CUtensorMap& x_map,
                        const Memory& memory,
                        int warp)
      : p_(p),
        w_map_(w_map),
        x_map_(x_map),
        lane_(static_cast<int>(threadIdx.x) % 32),
        part_(warp % p.parts),
        group_(warp / p.parts),
        w_(memory.w + warp * p.stages * kWBytes),
        x_(memory.x + warp * p.stages * sm90_warp_x_bytes(p.a.m)),
        barriers_(memory.barriers + warp * p.stages * 8),
        sums_(memory.sums + group_ * p.parts * kSums),
        policy_(read_once()) {
    const int steps = p.a.k / 64;
    first_step_ = steps * part_ / p.parts;
    num_steps_ = steps * (part_ + 1) / p.parts - first_step_;
    first_unit_ = static_cast<int>(blockIdx.x) + group_ * static_cast<int>(gridDim.x);
    unit_stride_ = p.groups * static_cast<int>(gridDim.x);
    const int units = first_unit_ < p.num_units
                          ? (p.num_units - first_unit_ + unit_stride_ - 1) / unit_stride_
                          : 0;
    to_load_ = units * ((num_steps_ + kSm90WarpSteps - 1) / kSm90WarpSteps);
    w_lane_ = lane_ % 16 * 128 + ((lane_ / 16) ^ (lane_ % 8)) * 16;
    // Rows of x beyond the last one have its values, and their products are not used.
    x_row_ = min(lane_ % 8, p.a.m - 1);
  }

  // Fills the ring for the first time: w before, x after the preceding kernel.
  __device__ void start_w() {
    if (elect_one()) {
      fetch_map(w_map_);
#pragma unroll 1
      for (int s = 0; s < p_.stages; ++s) {
        barrier_init(barriers_ + s * 8, 1);
      }
      publish_barriers();
      fence_async_proxy();
      Load at = first();
#pragma unroll 1
      for (int s = 0; s < min(p_.stages, to_load_); ++s, next(at)) {
        load_w(at, s);
      }
      fetch_map(x_map_);
    }
    __syncwarp();
  }
  // Loads the inputs of a unit's outputs that no kernel writes.
  __device__ void fetch_constants(int unit) {
    const Sm90WarpUnit at = sm90_warp_unit(unit, p_.gate, p_.leaves_norm);
    if (has_output(at)) {
      const int first = output(at);
      bias_ = four_of(p_.a.bias, first);
      up_bias_or_weight_ =
          p_.gate ? four_of(p_.a.bias, p_.a.n / 2 + first) : four_of(p_.a.next_weight, first);
    }
  }
  __device__ void fetch_first_constants() {
    if (part_ == 0 && first_unit_ < p_.num_units) {
      fetch_constants(first_unit_);
    }
  }
  __device__ void start_x() {
    const int stages = min(p_.stages, to_load_);
    load_ = first();
#pragma unroll 1
    for (int s = 0; s < stages; ++s, next(load_)) {
      if (elect_one()) {
        load_x(load_, s);
      }
    }
    __syncwarp();
    to_load_ -= stages;
  }

  __device__ void run(uint32_t scales_barrier, const float* scales) {
    int turn = 0;
    for (int unit = first_unit_; unit < p_.num_units; unit += unit_stride_, ++turn) {
      const bool finishes = turn % p_.parts == part_;
      const Sm90WarpUnit at = sm90_warp_unit(unit, p_.gate, p_.leaves_norm);
      const float4 old = finishes ? fetch_old(at) : float4{};
      if (finishes && turn > 0) {
        fetch_constants(unit);
      }
      float sum[4] = {};
      multiply(sum);
      float* sums = sums_ + turn % 2 * p_.groups * p_.parts * kSums;
      store_sums(sums + part_ * kSums, sum);
      if (p_.parts > 1) {
        sync_group();
      } else {
        __syncwarp();
      }
      if (finishes) {
        float scale = 1.0F;
        if (p_.a.squares != nullptr) {
          barrier_wait(scales_barrier, 0);
          scale = scales[lane_ / 4];
        }
        finish(at, sums, scale, old);
      }
    }
  }

 private:
  // Literal barrier numbers, else all 16 barriers are reserved.
  template <int kName>
  __device__ void sync_group_as() const {
    asm volatile("bar.sync %0, %1;" ::"n"(kName), "r"(32 * p_.parts) : "memory");
  }
  __device__ void sync_group() const {
    static_assert(kMaxSm90Warps / 2 == 6);
    switch (group_) {
      case 0:
        return sync_group_as<1>();
      case 1:
        return sync_group_as<2>();
      case 2:
        return sync_group_as<3>();
      case 3:
        return sync_group_as<4>();
      case 4:
        return sync_group_as<5>();
      default:
        return sync_group_as<6>();
    }
  }

  // The place of a stage's values: of which unit, and from which step of the part on.
  struct Load {
    int unit;
    int step;
  };
  [[nodiscard]] __device__ Load first() const { return {first_unit_, 0}; }
  __device__ void next(Load& at) const {
    at.step += kSm90WarpSteps;
    if (at.step >= num_steps_) {
      at.step = 0;
      at.unit += unit_stride_;
    }
  }

  // One lane. The last stage of a part may have steps of the next one or beyond the end, which are not used.
  __device__ void load_w(const Load& at, int stage) const {
    const Sm90WarpUnit unit = sm90_warp_unit(at.unit, p_.gate, p_.leaves_norm);
    const uint32_t full = barriers_ + stage * 8;
    barrier_arrive_expecting(full, kWBytes + kSm90WarpSteps * p_.a.m * 128);
    tma_load_4d(w_ + stage * kWBytes,
                w_map_,
                full,
                0,
                unit.row,
                unit.block,
                first_step_ + at.step,
                policy_);
  }
  __device__ void load_x(const Load& at, int stage) const {
    tma_load_3d(x_ + stage * sm90_warp_x_bytes(p_.a.m),
                x_map_,
                barriers_ + stage * 8,
                0,
                0,
                first_step_ + at.step);
  }

  // Multiplies kSteps steps of the stage from step `first` on. A warp issues in order, and each mma waits for the sum of the
  // one before, so operands are read two products ahead.
  template <int kSteps>
  __device__ void multiply_steps(int first, float (&sum)[4]) const {
    const uint32_t w = w_ + stage_ * kWBytes + first * kStepBytes + w_lane_;
    const uint32_t x = x_ + stage_ * sm90_warp_x_bytes(p_.a.m) + (first * p_.a.m + x_row_) * 128;
    Operands operands[3];
    const auto read = [&](int half) {
      Operands& to = operands[half % 3];
      const uint32_t row = x + half / 2 * p_.a.m * 128;
      const uint32_t chunk = half % 2 * 4 + lane_ / 8;
      load_matrices(to.x, row + (chunk ^ (row / 128 % 8)) * 16);
      load_matrices(to.w[0], (w ^ (half % 2 * 64)) + half / 2 * kStepBytes);
      load_matrices(to.w[1], (w ^ (half % 2 * 64 + 32)) + half / 2 * kStepBytes);
    };
    read(0);
    read(1);
#pragma unroll
    for (int half = 0; half < 2 * kSteps; ++half) {
      if (half + 2 < 2 * kSteps) {
        read(half + 2);
      }
      const Operands& o = operands[half % 3];
      mma_bf16(sum, o.w[0], o.x[0], o.x[1]);
      mma_bf16(sum, o.w[1], o.x[2], o.x[3]);
    }
  }
  // Refills a stage whose operands all lanes have read.
  __device__ void reload(int stage) {
    __syncwarp();
    if (to_load_ > 0) {
      --to_load_;
      if (elect_one()) {
        load_w(load_, stage);
        load_x(load_, stage);
      }
      next(load_);
    }
  }
  // Multiplies the warp's whole part of k.
  __device__ void multiply(float (&sum)[4]) {
#pragma unroll 1
    for (int at = 0; at < num_steps_; at += kSm90WarpSteps) {
      const int stage = stage_;
      barrier_wait(barriers_ + stage_ * 8, phase_);
      if (num_steps_ - at >= kSm90WarpSteps) {
        multiply_steps<kSm90WarpSteps>(0, sum);
      } else {
#pragma unroll 1
        for (int i = 0; at + i < num_steps_; ++i) {
          multiply_steps<1>(i, sum);
        }
      }
      if (++stage_ == p_.stages) {
        stage_ = 0;
        phase_ ^= 1;
      }
      reload(stage);
    }
  }

  // [8 rows of x][kPitch], of which 16 are outputs
  __device__ void store_sums(float* to, const float (&sum)[4]) const {
#pragma unroll
    for (int v = 0; v < 4; ++v) {
      to[(lane_ % 4 * 2 + v % 2) * kPitch + lane_ / 4 + v / 2 * 8] = sum[v];
    }
  }

  // The lane's outputs: row lane / 4 of x, and four adjacent columns of the unit's.
  [[nodiscard]] __device__ int output(const Sm90WarpUnit& at) const {
    return at.output + lane_ % 4 * at.stride;
  }
  [[nodiscard]] __device__ bool has_output(const Sm90WarpUnit& at) const {
    return lane_ / 4 < p_.a.m && output(at) < (p_.gate ? p_.a.n / 2 : p_.a.n) &&
           (!p_.gate || lane_ % 4 < 2);
  }
  [[nodiscard]] __device__ int64_t place(const Sm90WarpUnit& at) const {
    return lane_ / 4 * p_.a.y_stride + output(at);
  }

  [[nodiscard]] __device__ float4 fetch_old(const Sm90WarpUnit& at) const {
    if (p_.a.epilogue != LinearEpilogue::kAdd || !has_output(at)) {
      return {};
    }
    return *reinterpret_cast<const float4*>(static_cast<const float*>(p_.a.y) + place(at));
  }

  [[nodiscard]] __device__ static float4 four_of(const float* from, int first) {
    if (from == nullptr) {
      return {};
    }
    return {__ldg(from + first),
            __ldg(from + first + 1),
            __ldg(from + first + 2),
            __ldg(from + first + 3)};
  }

  // The lane's products from the unit's row r of w on, scaled, with their bias.
  [[nodiscard]] __device__ float4 total(const float* sums,
                                        int r,
                                        float scale,
                                        const float4& bias) const {
    const float* from = sums + lane_ / 4 * kPitch + r;
    float4 v = *reinterpret_cast<const float4*>(from);
    for (int part = 1; part < p_.parts; ++part) {
      v = sum_of(v, *reinterpret_cast<const float4*>(from + part * kSums));
    }
    return {scaled(v.x, scale, bias.x),
            scaled(v.y, scale, bias.y),
            scaled(v.z, scale, bias.z),
            scaled(v.w, scale, bias.w)};
  }

  __device__ void finish(const Sm90WarpUnit& at,
                         const float* sums,
                         float scale,
                         const float4& old) const {
    float4 v = {};
    if (has_output(at)) {
      v = total(sums, lane_ % 4 * 4, scale, bias_);
      if (p_.gate) {
        const float4 up = total(sums, 8 + lane_ % 4 * 4, scale, up_bias_or_weight_);
        v = {gated(v.x, up.x), gated(v.y, up.y), gated(v.z, up.z), gated(v.w, up.w)};
      }
      v = sum_of(v, old);
      if (p_.a.y_f32) {
        *reinterpret_cast<float4*>(static_cast<float*>(p_.a.y) + place(at)) = v;
      } else {
        store_bf16(static_cast<__nv_bfloat16*>(p_.a.y) + place(at), v);
      }
    }
    if (p_.leaves_norm) {
      leave_norm(at, v);
    }
  }

  // First half of the next norm. All lanes take part.
  __device__ void leave_norm(const Sm90WarpUnit& at, const float4& v) const {
    const float squares = quarter_of_squares<2, 1>(v, ~0U);
    const int row = lane_ / 4;
    if (row < p_.a.m) {
      store_bf16(static_cast<__nv_bfloat16*>(p_.a.next_x) + row * p_.a.n + output(at),
                 weighted(v, up_bias_or_weight_));
      if (lane_ % 4 == 0) {
        p_.a.next_squares[(row * (p_.a.n / 64) + at.output / 64) * 4 + at.output % 64 / 4] =
            squares;
      }
    }
  }
  __device__ static void store_bf16(__nv_bfloat16* to, const float4& v) {
    *reinterpret_cast<uint2*>(to) = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
  }

  const Params& p_;
  const CUtensorMap& w_map_;
  const CUtensorMap& x_map_;
  int lane_;
  int part_;
  int group_;
  uint32_t w_;
  uint32_t x_;
  uint32_t barriers_;
  float* sums_;  // of the group
  uint64_t policy_;
  int first_step_;
  int num_steps_;
  int first_unit_;
  int unit_stride_;
  uint32_t w_lane_;
  int x_row_;
  float4 bias_ = {};
  float4 up_bias_or_weight_ = {};  // the weight is that of the next norm
  Load load_ = {};                 // the next stage to load; to_load_: stages left
  int to_load_;
  int stage_ = 0;
  uint32_t phase_ = 0;
};

__global__ void __launch_bounds__(kThreads) sm90_warp_gemm_kernel(
    const __grid_constant__ Params p,
    const __grid_constant__ CUtensorMap w_map,
    const __grid_constant__ CUtensorMap x_map) {
  extern __shared__ unsigned char memory[];
  __shared__ uint64_t scales_barrier;
  __shared__ float scales[kMaxSm90WarpRows];
  unsigned char* data = memory + (1024 - shared_address(memory) % 1024) % 1024;
  const int warp = warp_uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const uint32_t scales_at = shared_address(&scales_barrier);
  if (warp == p.parts * p.groups) {
    if (lane == 0) {
      barrier_init(scales_at, 32);
    }
    __syncthreads();
    pdl_release();
    pdl_wait();
    if (p.a.squares != nullptr) {
      const int parts = p.a.k / 64;
      const auto* squares = reinterpret_cast<const float4*>(p.a.squares) + lane / 4 * parts;
      const float scale = inverse_rms(lane / 4 < p.a.m ? squares : nullptr,
                                      parts,
                                      lane % 4,
                                      static_cast<float>(p.a.k),
                                      p.a.norm_eps);
      if (lane % 4 == 0) {
        scales[lane / 4] = scale;
      }
      barrier_arrive(scales_at);
    }
    return;
  }
  Multiplier multiplier(p, w_map, x_map, Memory(p, data), warp);
  multiplier.start_w();
  multiplier.fetch_first_constants();
  __syncthreads();
  // A dependent kernel that starts now only fills its own rings before it waits for this kernel. This kernel ends after
  // the kernels before it.
  pdl_release();
  pdl_wait();
  multiplier.start_x();
  multiplier.run(scales_at, scales);
}

// A box is a unit's rows, and a stage's steps of 64 inputs.
CUtensorMap map_of_w(const Sm90GemmArgs& args, bool gate, bool leaves_norm) {
  const auto n = static_cast<uint64_t>(args.n);
  const auto row = static_cast<uint64_t>(args.k) * 2;
  const uint64_t steps = row / 128;
  const auto map = [&](uint64_t rows, uint64_t blocks, uint32_t box_rows, uint32_t box_blocks) {
    return tensor_map<4>(args.w,
                         {64, rows, blocks, steps},
                         {row, row * rows, 128},
                         {64, box_rows, box_blocks, kSm90WarpSteps},
                         CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
  };
  return gate ? map(n / 2, 2, 8, 2) : leaves_norm ? map(16, n / 16, 4, 4) : map(n, 1, 16, 1);
}
CUtensorMap map_of_x(const Sm90GemmArgs& args) {
  const auto rows = static_cast<uint32_t>(args.m);
  return tensor_map<3>(args.x,
                       {64, rows, static_cast<uint64_t>(args.k) / 64},
                       {static_cast<uint64_t>(args.x_stride) * 2, 128},
                       {64, rows, kSm90WarpSteps},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

}  // namespace

void sm90_bf16_gemm_warps(Stream& stream, const Sm90GemmArgs& args, const Sm90WarpPlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= kMaxSm90WarpRows, "{} rows", args.m);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(args.k % 64 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.next_weight == nullptr || sm90_gemm_leaves_norm(args.epilogue, args.n));
  WR_CHECK(plan.parts * plan.groups <= kMaxSm90Warps && args.k > (plan.parts - 1) * 64,
           "{} groups of {} parts",
           plan.groups,
           plan.parts);
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  WR_CHECK((gate ? args.n / 2 : args.n) % 4 == 0 &&
               args.y_stride * (args.y_f32 ? 4 : 2) % 16 == 0 &&
               reinterpret_cast<uintptr_t>(args.y) % 16 == 0,
           "y's rows are not 16-byte aligned");
  const bool leaves_norm = args.next_weight != nullptr;
  const size_t shared_bytes = sm90_warp_shared_bytes(plan, args.m);
  allow_shared_bytes<&sm90_warp_gemm_kernel>(shared_bytes);
  launch(stream,
         "sm90_warp_gemm",
         {dim3(static_cast<unsigned>(plan.num_blocks)),
          dim3(static_cast<unsigned>(plan.parts * plan.groups + 1) * 32),
          shared_bytes},
         sm90_warp_gemm_kernel,
         Params{args, plan.parts, plan.groups, plan.stages, plan.num_units, gate, leaves_norm},
         map_of_w(args, gate, leaves_norm),
         map_of_x(args));
}

}  // namespace warprow::cuda
