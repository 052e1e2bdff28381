// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/skinny_cuda.h"
#include "kernels/linear/skinny_layout.h"

#include <atomic>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

// Formula: linear.h's, for up to 32 rows of x.
// Shapes: w bf16 [n, k]; x bf16 [m, k] or float32 [m, k] with a norm; y bf16 or float32.
// Mapping: a block is one or two teams of 8 warps. A team takes tiles of
//   kTileRows rows of w, one after the other. The inputs of a tile are cut into chunks of 128; the
//   warps of the team take them in turn. Every warp has its own ring of chunks in shared memory,
//   filled by cp.async across tile borders, so the loop over chunks needs no barrier. x lies in
//   shared memory as a whole where it fits, else its chunks travel in the ring. Tensor cores:
//   m16n8k16 with rows of w as m and rows of x as n. A team's sums meet in shared memory.
// Bytes moved: w once. The ring is filled before the kernel waits for the one before it: as long as
//   blocks of both fit, the memory system works through the launch and the tail between kernels.
// Numerics: float32 sums. A warp keeps one sum for the even and one for the odd 16s of its chunks, in
//   ascending order; these two, then the warps in order. The order depends on n and k alone, so a
//   row's result does not depend on m. The norm: weights are applied before the product (rounded to
//   bf16), 1 / rms after it.
// Preconditions: k a multiple of 8; rows of x, w and norm_weight 16-byte aligned.
// Origin: own design.

namespace warprow::cuda {

namespace skinny_detail {

__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from, bool valid) {
  const int bytes = valid ? 16 : 0;  // the rest of the 16 becomes zeros
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to_shared),
               "l"(from),
               "r"(bytes)
               : "memory");
}
__device__ __forceinline__ void copy_async_16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to_shared), "l"(from)
               : "memory");
}
__device__ __forceinline__ void commit_async() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
template <int kPending>
__device__ __forceinline__ void wait_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}
// Waits until at most `pending` of the newest groups are under way.
__device__ __forceinline__ void wait_async(int pending) {
  switch (pending) {
    case 0:
      return wait_async<0>();
    case 1:
      return wait_async<1>();
    case 2:
      return wait_async<2>();
    default:
      return wait_async<kSkinnyMaxStages - 1>();
  }
}

// Four 8 x 8 matrices of bf16; lane l gives the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ void mma_bf16(float (&c)[4],
                                         const uint32_t (&a)[4],
                                         uint32_t b0,
                                         uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float silu(float v) { return v / (1.0F + __expf(-v)); }

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Where a 16-byte unit of a row of 256 bytes lies: eight rows' same units are in different banks.
__device__ __forceinline__ int swizzled(int row, int unit) { return (unit ^ (row & 7)) * 16; }

struct Params {
  SkinnyArgs a;
  int32_t num_teams;
  int32_t stages;
  int32_t num_tiles;
  bool stage_x;
};

// The rows of x in shared memory as bf16, [chunk][m] rows of 256 bytes, copied by all warps of a
// block. A row is the work of one or more warps, two chunks of 16 lanes each. Blocks start at
// different rows, or all would ask for the same lines at once.
class StagedX {
 public:
  __device__ StagedX(const SkinnyArgs& p, int num_warps, unsigned char* x, float* squares)
      : p_(p),
        x_(x),
        squares_(squares),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_warps_(min((skinny_chunks(p.k) + 1) / 2, num_warps)),
        rows_at_once_(num_warps / row_warps_),
        row_(static_cast<int>(threadIdx.x) / 32 / row_warps_),
        row_warp_(static_cast<int>(threadIdx.x) / 32 % row_warps_),
        first_chunk_(row_warp_ * 2 + lane_ / 16) {}

  // Weights are nobody's output: they are fetched before the wait.
  __device__ void fetch_norm_weight() {
    const int col = col_of(first_chunk_);
    if (p_.norm_weight != nullptr && col < p_.k) {
      load_weight(col, weight_);
    }
  }

  // Without a norm.
  __device__ void copy() const {
    for (int i = row_; i < p_.m && row_ < rows_at_once_; i += rows_at_once_) {
      const int row = turned(i);
      for (int chunk = first_chunk_; chunk < skinny_chunks(p_.k); chunk += row_warps_ * 2) {
        const int col = col_of(chunk);
        const auto* from = static_cast<const __nv_bfloat16*>(p_.x) + row * p_.x_stride + col;
        copy_async_16(shared_address(place(row, chunk)), col < p_.k ? from : p_.x, col < p_.k);
      }
    }
    commit_async();
    wait_async<0>();
  }

  // With the norm's weights; each warp leaves its part of a row's sum of squares.
  __device__ void copy_weighted() const {
    if (row_ >= rows_at_once_) {
      return;
    }
    for (int i = row_; i < p_.m; i += 2 * rows_at_once_) {  // two rows, for more loads under way
      const bool second = i + rows_at_once_ < p_.m;
      const int rows[2] = {turned(i), second ? turned(i + rows_at_once_) : 0};
      float squares[2] = {};
      for (int chunk = first_chunk_; chunk < skinny_chunks(p_.k); chunk += row_warps_ * 2) {
        const int col = col_of(chunk);
        float4 x[2][2] = {};
        if (col < p_.k) {
          load_x(rows[0], col, x[0]);
          if (second) {
            load_x(rows[1], col, x[1]);
          }
        }
        float4 g[2] = {weight_[0], weight_[1]};
        if (chunk != first_chunk_ && col < p_.k) {
          load_weight(col, g);
        }
        squares[0] = add_squares(x[0][1], add_squares(x[0][0], squares[0]));
        squares[1] = add_squares(x[1][1], add_squares(x[1][0], squares[1]));
        *reinterpret_cast<uint4*>(place(rows[0], chunk)) = weighted(x[0], g);
        if (second) {
          *reinterpret_cast<uint4*>(place(rows[1], chunk)) = weighted(x[1], g);
        }
      }
#pragma unroll
      for (int o = 16; o > 0; o /= 2) {
        squares[0] += __shfl_xor_sync(0xFFFFFFFFU, squares[0], o);
        squares[1] += __shfl_xor_sync(0xFFFFFFFFU, squares[1], o);
      }
      if (lane_ == 0) {
        squares_[rows[0] * kSkinnyMaxTeams * kSkinnyWarps + row_warp_] = squares[0];
        if (second) {
          squares_[rows[1] * kSkinnyMaxTeams * kSkinnyWarps + row_warp_] = squares[1];
        }
      }
    }
  }

 private:
  __device__ int turned(int i) const {
    return static_cast<int>((static_cast<unsigned>(i) + blockIdx.x) % static_cast<unsigned>(p_.m));
  }
  __device__ int col_of(int chunk) const { return chunk * kSkinnyChunk + lane_ % 16 * 8; }
  __device__ unsigned char* place(int row, int chunk) const {
    return x_ + (chunk * p_.m + row) * kSkinnyChunkBytes + swizzled(row, lane_ % 16);
  }
  __device__ void load_x(int row, int col, float4 (&x)[2]) const {
    const auto* from = static_cast<const float*>(p_.x) + row * p_.x_stride + col;
    x[0] = *reinterpret_cast<const float4*>(from);
    x[1] = *reinterpret_cast<const float4*>(from + 4);
  }
  __device__ void load_weight(int col, float4 (&g)[2]) const {
    g[0] = __ldg(reinterpret_cast<const float4*>(p_.norm_weight + col));
    g[1] = __ldg(reinterpret_cast<const float4*>(p_.norm_weight + col) + 1);
  }
  __device__ static float add_squares(const float4& v, float to) {
    return fmaf(v.w, v.w, fmaf(v.z, v.z, fmaf(v.y, v.y, fmaf(v.x, v.x, to))));
  }
  __device__ static uint4 weighted(const float4 (&x)[2], const float4 (&g)[2]) {
    return make_uint4(pack_bf16(x[0].x * g[0].x, x[0].y * g[0].y),
                      pack_bf16(x[0].z * g[0].z, x[0].w * g[0].w),
                      pack_bf16(x[1].x * g[1].x, x[1].y * g[1].y),
                      pack_bf16(x[1].z * g[1].z, x[1].w * g[1].w));
  }

  const SkinnyArgs& p_;
  unsigned char* x_;
  float* squares_;  // [m][warps of two teams]
  int lane_;
  int row_warps_;  // warps that share a row
  int rows_at_once_;
  int row_;  // the first of this warp; idle from rows_at_once_ on
  int row_warp_;
  int first_chunk_;
  float4 weight_[2] = {};
};

template <int kTileRows, int kRowGroups>
class Team {
 public:
  __device__ Team(const Params& p, unsigned char* shared)
      : p_(p.a),
        stages_(p.stages),
        num_tiles_(p.num_tiles),
        stage_x_(p.stage_x),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        num_teams_(p.num_teams),
        team_(static_cast<int>(threadIdx.x) / kSkinnyThreads),
        thread_(static_cast<int>(threadIdx.x) % kSkinnyThreads),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        row_bytes_(int64_t{p.a.k} * 2) {
    const int chunks = skinny_chunks(p_.k);
    warp_chunks_ = chunks > warp_ ? (chunks - warp_ + kSkinnyWarps - 1) / kSkinnyWarps : 0;
    first_tile_ = static_cast<int>(blockIdx.x) + team_ * static_cast<int>(gridDim.x);
    tile_step_ = p.num_teams * static_cast<int>(gridDim.x);
    const int tiles =
        first_tile_ < num_tiles_ ? (num_tiles_ - first_tile_ + tile_step_ - 1) / tile_step_ : 0;
    w_left_ = x_left_ = tiles * warp_chunks_;
    stage_bytes_ = kWBytes + (stage_x_ ? 0 : kXBytes);
    ring_ = shared_address(shared) + static_cast<int>(threadIdx.x) / 32 * stages_ * stage_bytes_;
    shared += num_teams_ * kSkinnyWarps * stages_ * stage_bytes_;
    staged_x_ = shared;
    shared += stage_x_ ? chunks * p_.m * kSkinnyChunkBytes : 0;
    squares_ = reinterpret_cast<float*>(shared);
    sums_ =
        squares_ + kSkinnyMaxTeams * kSkinnyWarps * p_.m + team_ * kSkinnyWarps * kTileRows * p_.m;
    square_parts_ = min((chunks + 1) / 2, num_teams_ * kSkinnyWarps);
    start_tile(first_tile_);
  }
  [[nodiscard]] __device__ unsigned char* staged_x() const { return staged_x_; }
  [[nodiscard]] __device__ float* squares() const { return squares_; }

  // Starts the loads of the first chunks of w. Touches nothing else.
  __device__ void fill_ring() {
    for (int s = 0; s < stages_; ++s) {
      fill_w(ring_ + s * stage_bytes_);
      commit_async();
    }
  }

  // Without staged x: its chunks beside those of w.
  __device__ void fill_ring_x() {
    for (int s = 0; s < stages_; ++s) {
      fill_x(ring_ + s * stage_bytes_ + kWBytes);
      commit_async();
    }
  }

  __device__ void run() {
    Output outputs[kOutputs];
    place_outputs(outputs);
    place_lanes();
    const uint32_t staged_x = shared_address(staged_x_);
    int stage = 0;
    for (int tile = first_tile_; tile < num_tiles_; tile += tile_step_) {
      fetch_old(tile, outputs);
      Sums sum = {};
      for (int c = 0; c < warp_chunks_; ++c) {
        wait_async(stages_ - 1);
        __syncwarp();
        const uint32_t w = ring_ + stage * stage_bytes_;
        const int chunk = c * kSkinnyWarps + warp_;
        add_chunk(w, stage_x_ ? staged_x + chunk * p_.m * kSkinnyChunkBytes : w + kWBytes, sum);
        __syncwarp();
        fill_w(w);
        if (!stage_x_) {
          fill_x(w + kWBytes);
        }
        commit_async();
        stage = stage + 1 == stages_ ? 0 : stage + 1;
      }
      if (tile != first_tile_) {
        barrier();  // the sums of the tile before have been read
      }
      leave_sums(sum);
      barrier();
      finish_outputs(tile, outputs);
    }
  }

 private:
  static constexpr int kWBytes = kTileRows * kSkinnyChunkBytes;  // of one chunk
  static constexpr int kXBytes = kRowGroups * 8 * kSkinnyChunkBytes;
  static constexpr int kOutputs =
      (kTileRows * kRowGroups * 8 + kSkinnyThreads - 1) / kSkinnyThreads;
  static constexpr int kPartsAtOnce = kTileRows * kRowGroups == 16 ? 2 : 1;  // as registers allow
  using Sums = float[2][kTileRows / 16][kRowGroups][4];

  // An output of this thread: the same place in every tile.
  struct Output {
    int row;  // of x and y
    int r;    // row of the tile
    float old;
  };

  __device__ void barrier() const {
    if (team_ == 0) {  // with literal numbers, or all 16 barriers are reserved
      asm volatile("bar.sync 1, %0;" ::"n"(kSkinnyThreads) : "memory");
    } else {
      asm volatile("bar.sync 2, %0;" ::"n"(kSkinnyThreads) : "memory");
    }
  }

  __device__ int span() const { return gate_ ? kTileRows / 2 : kTileRows; }
  __device__ int num_outputs() const { return gate_ ? p_.n / 2 : p_.n; }

  __device__ void start_tile(int tile) {
    fill_tile_ = tile;
    fill_chunk_ = warp_;
    const int row = tile * span() + lane_ / 16;
    fill_from_ = static_cast<const unsigned char*>(p_.w) + row * row_bytes_ +
                 warp_ * kSkinnyChunkBytes + lane_ % 16 * 16;
  }

  // Loads this warp's next chunk of w, if there is one. A tile's rows are those of its outputs; with
  // a gate the second half of the tile is the rows up for the gates of the first. Half a
  // warp copies a row.
  __device__ void fill_w(uint32_t to) {
    if (w_left_ == 0) {
      return;
    }
    --w_left_;
    if ((fill_tile_ + 1) * span() <= num_outputs() && (fill_chunk_ + 1) * kSkinnyChunk <= p_.k) {
      fill_whole(to);
    } else {
      fill_part(to);
    }
    fill_from_ += kSkinnyWarps * kSkinnyChunkBytes;
    fill_chunk_ += kSkinnyWarps;
    if (fill_chunk_ >= skinny_chunks(p_.k)) {
      start_tile(fill_tile_ + tile_step_);
    }
  }

  // From the last row of the first half of a tile to the first of the second, less the step between
  // rows.
  __device__ int64_t up_jump() const { return gate_ ? (p_.n - kTileRows) / 2 * row_bytes_ : 0; }

  __device__ void fill_whole(uint32_t to) const {
    const unsigned char* from = fill_from_;
    to += lane_ / 16 * kSkinnyChunkBytes + swizzled(lane_ / 16, lane_ % 16);
#pragma unroll
    for (int i = 0; i < kTileRows / 2; ++i) {
      // Of the swizzle the bits that row 2i does not share with row 0 change.
      copy_async_16((to ^ (i % 4 * 32)) + i * 2 * kSkinnyChunkBytes, from);
      from += 2 * row_bytes_;
      if (i == kTileRows / 4 - 1) {
        from += up_jump();
      }
    }
  }

  // Zeros for what lies outside.
  __device__ void fill_part(uint32_t to) const {
    const unsigned char* from = fill_from_;
#pragma unroll 1
    for (int r = lane_ / 16; r < kTileRows; r += 2) {
      const int output = fill_tile_ * span() + (gate_ ? r % (kTileRows / 2) : r);
      const bool valid =
          output < num_outputs() && fill_chunk_ * kSkinnyChunk + lane_ % 16 * 8 < p_.k;
      const unsigned char* at = from + (r >= kTileRows / 2 ? up_jump() : 0);
      copy_async_16(to + r * kSkinnyChunkBytes + swizzled(r, lane_ % 16), valid ? at : p_.w, valid);
      from += 2 * row_bytes_;
    }
  }

  __device__ void fill_x(uint32_t to) {
    if (x_left_ == 0) {
      return;
    }
    --x_left_;
    const int col = (x_chunk_ * kSkinnyWarps + warp_) * kSkinnyChunk + lane_ % 16 * 8;
#pragma unroll
    for (int i = 0; i < kRowGroups * 4; ++i) {
      const int row = i * 2 + lane_ / 16;
      if (row < p_.m) {
        const auto* from = static_cast<const __nv_bfloat16*>(p_.x) + row * p_.x_stride + col;
        copy_async_16(to + row * kSkinnyChunkBytes + swizzled(row, lane_ % 16),
                      col < p_.k ? from : p_.x,
                      col < p_.k);
      }
    }
    x_chunk_ = x_chunk_ + 1 == warp_chunks_ ? 0 : x_chunk_ + 1;
  }

  // What a lane adds to a chunk's address for ldmatrix. Of w: row l % 16, half l / 16 of 16 inputs.
  // Of x: row l % 8 (or the last, whose result is then not used), quarter l / 8 of 32 inputs. The
  // next 16 or 32 inputs are an exclusive or away, since rows are aligned to their 256 bytes.
  __device__ void place_lanes() {
    w_lane_ = lane_ % 16 * kSkinnyChunkBytes + swizzled(lane_ % 16, lane_ / 16);
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      const int row = min(i * 8 + lane_ % 8, p_.m - 1);
      x_lane_[i] = row * kSkinnyChunkBytes + swizzled(row, lane_ / 8);
    }
  }

  __device__ void add_chunk(uint32_t w, uint32_t x, Sums& sum) const {
#pragma unroll
    for (int first = 0; first < kSkinnyChunk / 32; first += kPartsAtOnce) {
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
                ((w + w_lane_) ^ ((first + p) * 64 + half * 32)) + j * 16 * kSkinnyChunkBytes);
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
  __device__ void leave_sums(const Sums& sum) const {
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
      const int o = thread_ + i * kSkinnyThreads;
      outputs[i].row = o / kTileRows;
      outputs[i].r = o % kTileRows;
    }
  }

  __device__ bool valid(int tile, const Output& out) const {
    return out.row < p_.m && out.r < span() && tile * span() + out.r < num_outputs();
  }

  // What is added to is fetched before the loop over the chunks.
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
    for (int w = 0; w < kSkinnyWarps; ++w) {
      v += sums_[(w * p_.m + row) * kTileRows + r];
    }
    return v;
  }

  __device__ float inverse_rms(int row) const {
    float squares = 0.0F;
    for (int w = 0; w < square_parts_; ++w) {
      squares += squares_[row * kSkinnyMaxTeams * kSkinnyWarps + w];
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
      const float scale = p_.norm_weight != nullptr ? inverse_rms(out.row) : 1.0F;
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

  const SkinnyArgs& p_;
  int stages_;
  int num_tiles_;
  bool stage_x_;
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
  // The next chunk of w to load: chunks left, its tile, its number in the tile and this lane's
  // address in it. Of x only the number.
  int w_left_ = 0;
  int fill_tile_ = 0;
  int fill_chunk_ = 0;
  const unsigned char* fill_from_ = nullptr;
  int x_left_ = 0;
  int x_chunk_ = 0;
  int stage_bytes_ = 0;
  uint32_t ring_ = 0;  // this warp's, a shared address
  uint32_t w_lane_ = 0;
  uint32_t x_lane_[kRowGroups] = {};
  unsigned char* staged_x_ = nullptr;  // [chunks][m] rows of 256 bytes
  float* squares_ = nullptr;           // [m][warps of two teams], the first square_parts_
  int square_parts_ = 0;
  float* sums_ = nullptr;  // the team's
};

template <int kTileRows, int kRowGroups>
__global__
__launch_bounds__(kSkinnyMaxTeams* kSkinnyThreads, kTileRows* kRowGroups <= 32 ? 2 : 1) void
skinny_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) unsigned char shared[];
  Team<kTileRows, kRowGroups> team(p, shared);
  StagedX x(p.a, p.num_teams * kSkinnyWarps, team.staged_x(), team.squares());
  team.fill_ring();
  x.fetch_norm_weight();
  // Whatever starts now only fills its own rings before it waits for this kernel, and this kernel
  // ends after the ones before it.
  pdl_release();
  pdl_wait();
  if (p.a.norm_weight != nullptr) {
    x.copy_weighted();
  } else if (p.stage_x) {
    x.copy();
  } else {
    team.fill_ring_x();
  }
  __syncthreads();
  team.run();
}

}  // namespace skinny_detail

template <int kTileRows, int kRowGroups>
void launch_skinny(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan) {
  auto* kernel = skinny_detail::skinny_kernel<kTileRows, kRowGroups>;
  static std::atomic<uint64_t> raised{0};  // by device
  int device = 0;
  WR_CUDA(cudaGetDevice(&device));
  const uint64_t bit = uint64_t{1} << (device % 64);
  if ((raised.load(std::memory_order_relaxed) & bit) == 0) {
    int most = 0;
    WR_CUDA(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    WR_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most));
    raised.fetch_or(bit, std::memory_order_relaxed);
  }
  const skinny_detail::Params params{
      args, plan.num_teams, plan.stages, plan.num_tiles, plan.x_place == SkinnyX::kStaged};
  launch(stream,
         "skinny",
         {dim3(static_cast<unsigned>(plan.num_blocks)),
          dim3(static_cast<unsigned>(plan.num_teams * kSkinnyThreads)),
          plan.shared_bytes},
         kernel,
         params);
}

}  // namespace warprow::cuda
