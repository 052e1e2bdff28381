// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/linear/finish.cuh"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm80_weighted_x.cuh"

#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Formula: as in linear.h, for up to 32 rows of x.
// Shapes: w bf16 [n, k]; x bf16 [m, k] or float32 [m, k] with a norm; y bf16 or float32.
// Mapping: a CTA is one or two teams of 8 warps. A team loops over tiles of kTileRows rows of w. The inputs
//   of a tile are split into chunks of 128, which the warps take in turn. Every warp has its own ring of
//   chunks in shared memory, filled by cp.async across tile boundaries, so the loop over chunks needs no
//   barrier. The chunks of x go through the ring next to those of w; with a norm, all of x is in shared
//   memory. Tensor cores: m16n8k16 with rows of w as m and rows of x as n. The warps' partial sums are added
//   up in shared memory at the end of a tile.
// Bytes moved: w once; x from L2 once a tile, with a norm once a CTA. The kernel fills the ring with w before
//   it waits for the preceding kernel, so memory stays busy through the launch and the tail between kernels.
// Numerics: float32 sums. A warp keeps one sum for the even and one for the odd 16s of its chunks, in
//   ascending order. These two are added, then the sums of the 8 warps in order. The order depends on k
//   alone, so a row's result depends on neither m nor the plan. The norm: weights are applied before the
//   product (rounded to bf16), 1 / rms after it. The order of its sum of squares depends on the number of
//   teams.
// Preconditions: k a multiple of 8; rows of x, w and norm_weight 16-byte aligned.
// Origin: own design.

namespace warprow::cuda {

namespace sm80_gemm_detail {

// Waits until at most `pending` of the newest groups of copies are in flight.
__device__ __forceinline__ void copy_wait_but(int pending) {
  switch (pending) {
    case 0:
      return copy_wait<0>();
    case 1:
      return copy_wait<1>();
    case 2:
      return copy_wait<2>();
    default:
      return copy_wait<kSm80GemmMaxStages - 1>();
  }
}

struct Params {
  Sm80GemmArgs a;
  int32_t num_teams;
  int32_t stages;
  int32_t num_tiles;
};

template <int kTileRows, int kRowGroups>
class Team {
 public:
  __device__ Team(const Params& p, unsigned char* shared)
      : p_(p.a),
        stages_(p.stages),
        num_tiles_(p.num_tiles),
        norm_(p.a.norm_weight != nullptr),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        num_teams_(p.num_teams),
        team_(static_cast<int>(threadIdx.x) / kSm80GemmThreads),
        thread_(static_cast<int>(threadIdx.x) % kSm80GemmThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        row_bytes_(int64_t{p.a.k} * 2) {
    const int chunks = sm80_gemm_chunks(p_.k);
    warp_chunks_ = chunks > warp_ ? (chunks - warp_ + kSm80GemmWarps - 1) / kSm80GemmWarps : 0;
    first_tile_ = static_cast<int>(blockIdx.x) + team_ * static_cast<int>(gridDim.x);
    tile_step_ = p.num_teams * static_cast<int>(gridDim.x);
    const int tiles =
        first_tile_ < num_tiles_ ? (num_tiles_ - first_tile_ + tile_step_ - 1) / tile_step_ : 0;
    w_left_ = x_left_ = tiles * warp_chunks_;
    stage_bytes_ = sm80_gemm_stage_bytes(kTileRows, p_.m, norm_);
    ring_ = shared_address(shared) + static_cast<int>(threadIdx.x) / 32 * stages_ * stage_bytes_;
    shared += num_teams_ * kSm80GemmWarps * stages_ * stage_bytes_;
    weighted_x_ = shared;
    shared += norm_ ? chunks * p_.m * kSm80GemmChunkBytes : 0;
    squares_ = reinterpret_cast<float*>(shared);
    sums_ = squares_ + kSm80GemmMaxTeams * kSm80GemmWarps * p_.m +
            team_ * kSm80GemmWarps * kTileRows * p_.m;
    square_parts_ = min((chunks + 1) / 2, num_teams_ * kSm80GemmWarps);
    start_tile(first_tile_);
  }
  [[nodiscard]] __device__ unsigned char* weighted_x() const { return weighted_x_; }
  [[nodiscard]] __device__ float* squares() const { return squares_; }

  // Starts the loads of the first chunks of w. Reads nothing that an earlier kernel writes.
  __device__ void fill_ring() {
    for (int s = 0; s < stages_; ++s) {
      fill_w(ring_ + s * stage_bytes_);
      copy_commit();
    }
  }

  // Without a norm: starts the loads of the first chunks of x.
  __device__ void fill_ring_x() {
    for (int s = 0; s < stages_; ++s) {
      fill_x(ring_ + s * stage_bytes_ + kWBytes);
      copy_commit();
    }
  }

  __device__ void run() {
    Output outputs[kOutputs];
    place_outputs(outputs);
    place_lanes();
    const uint32_t weighted_x = shared_address(weighted_x_);
    int stage = 0;
    for (int tile = first_tile_; tile < num_tiles_; tile += tile_step_) {
      fetch_old(tile, outputs);
      Sums sum = {};
      for (int c = 0; c < warp_chunks_; ++c) {
        copy_wait_but(stages_ - 1);
        __syncwarp();
        const uint32_t w = ring_ + stage * stage_bytes_;
        const int chunk = c * kSm80GemmWarps + warp_;
        add_chunk(w, norm_ ? weighted_x + chunk * p_.m * kSm80GemmChunkBytes : w + kWBytes, sum);
        __syncwarp();
        fill_w(w);
        if (!norm_) {
          fill_x(w + kWBytes);
        }
        copy_commit();
        stage = stage + 1 == stages_ ? 0 : stage + 1;
      }
      if (tile != first_tile_) {
        barrier();  // all warps have read the previous tile's sums
      }
      store_partial_sums(sum);
      barrier();
      finish_outputs(tile, outputs);
    }
  }

 private:
  static constexpr int kWBytes = kTileRows * kSm80GemmChunkBytes;  // of one chunk
  static constexpr int kOutputs =
      (kTileRows * kRowGroups * 8 + kSm80GemmThreads - 1) / kSm80GemmThreads;
  static constexpr int kPartsAtOnce = kTileRows * kRowGroups == 16 ? 2 : 1;  // limited by registers
  using Sums = float[2][kTileRows / 16][kRowGroups][4];

  // An output of this thread: at the same position in every tile.
  struct Output {
    int row;  // of x and y
    int r;    // row of the tile
    float old;
  };

  __device__ void barrier() const {
    if (team_ == 0) {  // literal barrier numbers, else all 16 barriers are reserved
      asm volatile("bar.sync 1, %0;" ::"n"(kSm80GemmThreads) : "memory");
    } else {
      asm volatile("bar.sync 2, %0;" ::"n"(kSm80GemmThreads) : "memory");
    }
  }

  __device__ int span() const { return gate_ ? kTileRows / 2 : kTileRows; }
  __device__ int num_outputs() const { return gate_ ? p_.n / 2 : p_.n; }

  __device__ void start_tile(int tile) {
    fill_tile_ = tile;
    fill_chunk_ = warp_;
    const int row = tile * span() + lane_ / 16;
    fill_from_ = static_cast<const unsigned char*>(p_.w) + row * row_bytes_ +
                 warp_ * kSm80GemmChunkBytes + lane_ % 16 * 16;
  }

  // Loads this warp's next chunk of w, if there is one. The rows of a tile are those of its outputs. With a
  // gate, the first half of the tile has the gate rows and the second half their up rows. Half a warp copies
  // a row.
  __device__ void fill_w(uint32_t to) {
    if (w_left_ == 0) {
      return;
    }
    --w_left_;
    if ((fill_tile_ + 1) * span() <= num_outputs() && (fill_chunk_ + 1) * kSm80GemmChunk <= p_.k) {
      fill_whole(to);
    } else {
      fill_part(to);
    }
    fill_from_ += kSm80GemmWarps * kSm80GemmChunkBytes;
    fill_chunk_ += kSm80GemmWarps;
    if (fill_chunk_ >= sm80_gemm_chunks(p_.k)) {
      start_tile(fill_tile_ + tile_step_);
    }
  }

  // Address step from the last row of the first half of a tile to the first row of the second half, minus the
  // step between rows.
  __device__ int64_t up_jump() const { return gate_ ? (p_.n - kTileRows) / 2 * row_bytes_ : 0; }

  __device__ void fill_whole(uint32_t to) const {
    const unsigned char* from = fill_from_;
    to += lane_ / 16 * kSm80GemmChunkBytes + swizzled(lane_ / 16, lane_ % 16);
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      // Only the swizzle bits in which row 2i differs from row 0 change.
      copy16_async((to ^ (i % 4 * 32)) + i * 2 * kSm80GemmChunkBytes, from);
      from += 2 * row_bytes_;
      if (i == kTileRows / 4 - 1) {
        from += up_jump();
      }
    }
  }

  // Loads a chunk at the edge of w, with zeros outside.
  __device__ void fill_part(uint32_t to) const {
    const unsigned char* from = fill_from_;
#pragma unroll 1
    for (int r = lane_ / 16; r < kTileRows; r += 2) {
      const int output = fill_tile_ * span() + (gate_ ? r % (kTileRows / 2) : r);
      const bool valid =
          output < num_outputs() && fill_chunk_ * kSm80GemmChunk + lane_ % 16 * 8 < p_.k;
      const unsigned char* at = from + (r >= kTileRows / 2 ? up_jump() : 0);
      copy16_async(
          to + r * kSm80GemmChunkBytes + swizzled(r, lane_ % 16), valid ? at : p_.w, valid);
      from += 2 * row_bytes_;
    }
  }

  __device__ void fill_x(uint32_t to) {
    if (x_left_ == 0) {
      return;
    }
    --x_left_;
    const int col = (x_chunk_ * kSm80GemmWarps + warp_) * kSm80GemmChunk + lane_ % 16 * 8;
#pragma unroll
    for (int i = 0; i < kRowGroups * 4; ++i) {
      const int row = i * 2 + lane_ / 16;
      if (row < p_.m) {
        const auto* from = static_cast<const __nv_bfloat16*>(p_.x) + row * p_.x_stride + col;
        copy16_async(to + row * kSm80GemmChunkBytes + swizzled(row, lane_ % 16),
                     col < p_.k ? from : p_.x,
                     col < p_.k);
      }
    }
    x_chunk_ = x_chunk_ + 1 == warp_chunks_ ? 0 : x_chunk_ + 1;
  }

  // Per-lane offsets into a chunk for ldmatrix. In w: row l % 16, half l / 16 of 16 inputs. In x: row l % 8
  // (or the last row, whose result is then not used), quarter l / 8 of 32 inputs. The next 16 or 32 inputs
  // are reached by exclusive or, since rows are aligned to their 256 bytes.
  __device__ void place_lanes() {
    w_lane_ = lane_ % 16 * kSm80GemmChunkBytes + swizzled(lane_ % 16, lane_ / 16);
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      const int row = min(i * 8 + lane_ % 8, p_.m - 1);
      x_lane_[i] = row * kSm80GemmChunkBytes + swizzled(row, lane_ / 8);
    }
  }

  __device__ void add_chunk(uint32_t w, uint32_t x, Sums& sum) const {
#pragma unroll
    for (int first = 0; first < kSm80GemmChunk / 32; first += kPartsAtOnce) {
      uint32_t a[kPartsAtOnce][2][kTileRows / 16][4];
      uint32_t b[kPartsAtOnce][kRowGroups][4];
#pragma unroll
      for (int p = 0; p < kPartsAtOnce; ++p) {
#pragma unroll
        for (int i = 0; i < kRowGroups; ++i) {
          load_matrices(b[p][i], (x + x_lane_[i]) ^ ((first + p) * 64));
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < kTileRows / 16; ++j) {
            load_matrices(
                a[p][half][j],
                ((w + w_lane_) ^ ((first + p) * 64 + half * 32)) + j * 16 * kSm80GemmChunkBytes);
          }
        }
      }
#pragma unroll
      for (int p = 0; p < kPartsAtOnce; ++p) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int j = 0; j < kTileRows / 16; ++j) {
#pragma unroll
            for (int i = 0; i < kRowGroups; ++i) {
              mma_bf16(sum[half][j][i], a[p][half][j], b[p][i][half * 2], b[p][i][half * 2 + 1]);
            }
          }
        }
      }
    }
  }

  // sums_ [warps][m][kTileRows]
  __device__ void store_partial_sums(const Sums& sum) const {
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const int row = i * 8 + lane_ % 4 * 2 + v % 2;
        if (row < p_.m) {
          float* to = sums_ + (warp_ * p_.m + row) * kTileRows + lane_ / 4 + v / 2 * 8;
#pragma unroll
          for (int j = 0; j < kTileRows / 16; ++j) {
            to[j * 16] = sum[0][j][i][v] + sum[1][j][i][v];
          }
        }
      }
    }
  }

  __device__ void place_outputs(Output (&outputs)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int o = thread_ + i * kSm80GemmThreads;
      outputs[i].row = o / kTileRows;
      outputs[i].r = o % kTileRows;
    }
  }

  __device__ bool valid(int tile, const Output& out) const {
    return out.row < p_.m && out.r < span() && tile * span() + out.r < num_outputs();
  }

  // Loads the old y, which the outputs are added to, ahead of the loop over the chunks.
  __device__ void fetch_old(int tile, Output (&outputs)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      Output& out = outputs[i];
      out.old = 0.0F;
      if (p_.epilogue == LinearEpilogue::kAdd && valid(tile, out)) {
        out.old = static_cast<const float*>(p_.y)[out.row * p_.y_stride + tile * span() + out.r];
      }
    }
  }

  __device__ float total(int row, int r) const {
    float v = 0.0F;
#pragma unroll
    for (int w = 0; w < kSm80GemmWarps; ++w) {
      v += sums_[(w * p_.m + row) * kTileRows + r];
    }
    return v;
  }

  __device__ float inverse_rms(int row) const {
    float squares = 0.0F;
    for (int w = 0; w < square_parts_; ++w) {
      squares += squares_[row * kSm80GemmMaxTeams * kSm80GemmWarps + w];
    }
    return rsqrtf(squares / static_cast<float>(p_.k) + p_.norm_eps);
  }

  __device__ void finish_outputs(int tile, const Output (&outputs)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const Output& out = outputs[i];
      if (!valid(tile, out)) {
        continue;
      }
      const int output = tile * span() + out.r;
      const float scale = norm_ ? inverse_rms(out.row) : 1.0F;
      const float bias = p_.bias != nullptr ? __ldg(p_.bias + output) : 0.0F;
      float v = fmaf(total(out.row, out.r), scale, bias);
      if (gate_) {
        const float bias_up = p_.bias != nullptr ? __ldg(p_.bias + p_.n / 2 + output) : 0.0F;
        v = silu(v) * fmaf(total(out.row, out.r + kTileRows / 2), scale, bias_up);
      }
      v += out.old;
      const int64_t at = out.row * p_.y_stride + output;
      if (p_.y_f32) {
        static_cast<float*>(p_.y)[at] = v;
      } else {
        static_cast<__nv_bfloat16*>(p_.y)[at] = __float2bfloat16(v);
      }
    }
  }

  const Sm80GemmArgs& p_;
  int stages_;
  int num_tiles_;
  bool norm_;
  bool gate_;
  int num_teams_;
  int team_;
  int thread_;  // of the team
  int warp_;    // of the team
  int lane_;
  int64_t row_bytes_;
  int warp_chunks_ = 0;
  int first_tile_ = 0;
  int tile_step_ = 0;
  // The next chunk of w to load: the chunks left, its tile, its index in the tile and this lane's address in
  // it. For x, only the chunks left and the index.
  int w_left_ = 0;
  int fill_tile_ = 0;
  int fill_chunk_ = 0;
  const unsigned char* fill_from_ = nullptr;
  int x_left_ = 0;
  int x_chunk_ = 0;
  int stage_bytes_ = 0;
  uint32_t ring_ = 0;  // this warp's ring, a shared address
  uint32_t w_lane_ = 0;
  uint32_t x_lane_[kRowGroups] = {};
  unsigned char* weighted_x_ = nullptr;  // [chunks][m] rows of 256 bytes
  float* squares_ = nullptr;  // [m][warps of two teams], of which the first square_parts_ are used
  int square_parts_ = 0;
  float* sums_ = nullptr;  // the team's partial sums
};

// If 64 registers are enough, two CTAs (of one kernel or of two) share an SM.
template <int kTileRows, int kRowGroups>
__global__
__launch_bounds__(kSm80GemmMaxTeams* kSm80GemmThreads, kTileRows* kRowGroups <= 32 ? 2 : 1) void
sm80_gemm_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Team<kTileRows, kRowGroups> team(p, shared);
  WeightedX x(p.a, p.num_teams * kSm80GemmWarps, team.weighted_x(), team.squares());
  team.fill_ring();
  x.fetch_norm_weight();
  // A dependent kernel that starts now only fills its own ring before it waits for this kernel. This kernel
  // ends after the kernels before it.
  pdl_release();
  pdl_wait();
  if (p.a.norm_weight != nullptr) {
    x.copy();
    __syncthreads();
  } else {
    team.fill_ring_x();
  }
  team.run();
}

}  // namespace sm80_gemm_detail

template <int kTileRows, int kRowGroups>
void launch_sm80_gemm(Stream& stream, const Sm80GemmArgs& args, const Sm80GemmPlan& plan) {
  constexpr auto* kKernel = &sm80_gemm_detail::sm80_gemm_kernel<kTileRows, kRowGroups>;
  allow_shared_bytes<kKernel>(plan.shared_bytes);
  const sm80_gemm_detail::Params params{args, plan.num_teams, plan.stages, plan.num_tiles};
  launch(stream,
         "sm80_gemm",
         {dim3(static_cast<unsigned>(plan.num_blocks)),
          dim3(static_cast<unsigned>(plan.num_teams * kSm80GemmThreads)),
          plan.shared_bytes},
         kKernel,
         params);
}

template void launch_sm80_gemm<WR_TILE_ROWS, 1>(Stream& stream,
                                                const Sm80GemmArgs& args,
                                                const Sm80GemmPlan& plan);
template void launch_sm80_gemm<WR_TILE_ROWS, 2>(Stream& stream,
                                                const Sm80GemmArgs& args,
                                                const Sm80GemmPlan& plan);
template void launch_sm80_gemm<WR_TILE_ROWS, 4>(Stream& stream,
                                                const Sm80GemmArgs& args,
                                                const Sm80GemmPlan& plan);

}  // namespace warprow::cuda
