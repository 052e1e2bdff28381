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
// Mapping: a block of 8 warps takes tiles of kTileRows rows of w, one after the other. The inputs of
//   a tile are cut into chunks of 64 (one 128-byte line of every row); warp v takes the chunks v, v +
//   8, .... Every warp has its own ring of chunks in shared memory, filled by cp.async across tile
//   borders, so the loop over chunks needs no block barrier. Tensor cores: m16n8k16 with rows of x
//   as m and rows of w as n; the inputs within 32 are permuted alike for both, so that each lane's
//   operands are plain 16-byte loads. The warps' sums meet in shared memory, one barrier a tile.
// Bytes moved: w once. The ring is filled before the kernel waits for the one before it: as long as
//   blocks of both fit, the memory system works through the launch and the tail between kernels.
// Numerics: float32 sums. A warp's chunks in ascending order, then the 8 warps in order: the order
//   depends on k alone, not on m, tile_rows or the block, so a row's result does neither. The norm:
//   weights are applied before the product (rounded to bf16), 1 / rms after it.
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
    case 3:
      return wait_async<3>();
    case 4:
      return wait_async<4>();
    case 5:
      return wait_async<5>();
    case 6:
      return wait_async<6>();
    case 7:
      return wait_async<7>();
    case 8:
      return wait_async<8>();
    case 9:
      return wait_async<9>();
    case 10:
      return wait_async<10>();
    default:
      return wait_async<11>();
  }
}

__device__ __forceinline__ void mma_bf16(
    float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void prefetch_l2(const void* p) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

__device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ float silu(float v) { return v / (1.0F + __expf(-v)); }

struct Params {
  SkinnyArgs a;
  int32_t stages;
  int32_t num_tiles;
  int32_t l2_chunks;
  bool stage_x;
};

template <int kTileRows, int kRowGroups>
class Block {
 public:
  __device__ Block(const Params& p, unsigned char* shared)
      : p_(p.a),
        stages_(p.stages),
        num_tiles_(p.num_tiles),
        lane_(static_cast<int>(threadIdx.x) % 32),
        warp_(static_cast<int>(threadIdx.x) / 32),
        gate_(p.a.epilogue == LinearEpilogue::kSwiGlu),
        half_(p.a.n / 2) {
    const int chunks = skinny_chunks(p_.k);
    warp_chunks_ = chunks > warp_ ? (chunks - warp_ + kSkinnyWarps - 1) / kSkinnyWarps : 0;
    ring_ = shared + warp_ * stages_ * kStageBytes;
    unsigned char* next = shared + kSkinnyWarps * stages_ * kStageBytes;
    if (p.stage_x) {
      x_pitch_ = skinny_x_pitch(p_.k);
      x_ = next;
      next += p_.m * x_pitch_;
    } else {
      x_pitch_ = p_.x_stride * 2;
      x_ = static_cast<const unsigned char*>(p_.x);
    }
    sums_ = reinterpret_cast<float*>(next);
    squares_ = sums_ + 2 * kSkinnyWarps * kTileRows * p_.m;
    fill_tile_ = static_cast<int>(blockIdx.x);
  }

  // Starts the loads of the first chunks: touches weights only.
  __device__ void fill_ring() {
    for (int s = 0; s < stages_; ++s) {
      fill_next(s);
    }
  }

  // Asks for the chunks after those of the ring, into L2.
  __device__ void prefetch_beyond(int count) const {
    if (warp_chunks_ == 0) {
      return;
    }
    int tile = fill_tile_;
    int chunk = fill_chunk_;
    for (int s = 0; s < count && tile < num_tiles_; ++s) {
      const int col = (chunk * kSkinnyWarps + warp_) * kSkinnyChunk;
      const WRow at = w_row(tile, lane_);
      if (lane_ < kTileRows && at.valid) {
        prefetch_l2(static_cast<const __nv_bfloat16*>(p_.w) + at.row * p_.k + col);
      }
      if (++chunk == warp_chunks_) {
        chunk = 0;
        tile += static_cast<int>(gridDim.x);
      }
    }
  }

  __device__ void prefetch_norm_weight() const {
    for (int line = static_cast<int>(threadIdx.x); line * 32 < p_.k; line += kSkinnyThreads) {
      prefetch_l2(p_.norm_weight + line * 32);
    }
  }

  // Copies this warp's inputs of every row of x, with the norm's weights, where only this warp reads
  // them; with a norm it leaves the warp's part of the sum of squares.
  template <bool kNorm>
  __device__ void stage_x() const {
    const int part = lane_ / 8;
    const int col_in_chunk = lane_ % 8 * 8;
#pragma unroll 2
    for (int row = 0; row < p_.m; ++row) {
      float squares = 0.0F;
#pragma unroll 2
      for (int c = part; c < warp_chunks_; c += 4) {
        const int chunk = c * kSkinnyWarps + warp_;
        const int col = chunk * kSkinnyChunk + col_in_chunk;
        uint4 v = make_uint4(0, 0, 0, 0);
        if (col < p_.k) {
          if constexpr (kNorm) {
            v = weigh(static_cast<const float*>(p_.x) + row * p_.x_stride + col,
                      p_.norm_weight + col,
                      squares);
          } else {
            v = *reinterpret_cast<const uint4*>(static_cast<const __nv_bfloat16*>(p_.x) +
                                                row * p_.x_stride + col);
          }
        }
        *reinterpret_cast<uint4*>(const_cast<unsigned char*>(x_) + row * x_pitch_ +
                                  chunk * kSkinnyChunk * 2 + lane_ % 8 * 16) = v;
      }
      if constexpr (kNorm) {
#pragma unroll
        for (int o = 16; o > 0; o /= 2) {
          squares += __shfl_xor_sync(0xFFFFFFFFU, squares, o);
        }
        if (lane_ == 0) {
          squares_[warp_ * p_.m + row] = squares;
        }
      }
    }
    __syncwarp();
  }

  __device__ void run() {
    int stage = 0;
    int parity = 0;
    for (int tile = static_cast<int>(blockIdx.x); tile < num_tiles_;
         tile += static_cast<int>(gridDim.x)) {
      Output outputs[kOutputs];
      start_outputs(tile, outputs);
      float sum[kTileRows / 8][kPairs][4] = {};
      for (int c = 0; c < warp_chunks_; ++c) {
        wait_async(stages_ - 1);
        __syncwarp();
        add_chunk(c * kSkinnyWarps + warp_, ring_ + stage * kStageBytes, sum);
        __syncwarp();
        fill_next(stage);
        stage = stage + 1 == stages_ ? 0 : stage + 1;
      }
      float* meet = sums_ + parity * kSkinnyWarps * kTileRows * p_.m;
      leave_sums(meet, sum);
      __syncthreads();
      finish_outputs(meet, outputs);
      parity ^= 1;  // a second buffer: the next tile's sums may come while these are read
    }
    wait_async<0>();
  }

 private:
  static constexpr int kStageBytes = kTileRows * kSkinnyChunk * 2;
  static constexpr int kPairs = (kRowGroups + 1) / 2;  // m16 operands
  static constexpr int kOutputs =
      (kTileRows * kRowGroups * 8 + kSkinnyThreads - 1) / kSkinnyThreads;

  // One output of this thread in the tile at hand.
  struct Output {
    bool valid;
    int64_t at;  // elements from y
    float bias;
    float bias_up;
    float old;
  };

  __device__ int span() const { return gate_ ? kTileRows / 2 : kTileRows; }
  __device__ int num_outputs() const { return gate_ ? half_ : p_.n; }

  // Row r of a tile: with a gate the tile's second half is the rows up for the first half's gates.
  struct WRow {
    int64_t row;
    bool valid;
  };
  __device__ WRow w_row(int tile, int r) const {
    const bool up = gate_ && r >= kTileRows / 2;
    const int output = tile * span() + (up ? r - kTileRows / 2 : r);
    return {output + (up ? half_ : 0), output < num_outputs()};
  }

  // Loads this warp's next chunk, if there is one, into a stage; always one group.
  __device__ void fill_next(int stage) {
    if (fill_tile_ < num_tiles_ && warp_chunks_ > 0) {
      const int col = (fill_chunk_ * kSkinnyWarps + warp_) * kSkinnyChunk + lane_ % 8 * 8;
      const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(ring_ + stage * kStageBytes));
#pragma unroll
      for (int i = 0; i < kTileRows / 4; ++i) {
        const int r = i * 4 + lane_ / 8;
        const WRow at = w_row(fill_tile_, r);
        const bool valid = at.valid && col < p_.k;
        const auto* from =
            static_cast<const __nv_bfloat16*>(p_.w) + (valid ? at.row * p_.k + col : 0);
        copy_async_16(to + r * 128 + ((lane_ % 8) ^ ((r & 1) * 4)) * 16, from, valid);
      }
      if (++fill_chunk_ == warp_chunks_) {
        fill_chunk_ = 0;
        fill_tile_ += static_cast<int>(gridDim.x);
      }
    }
    commit_async();
  }

  __device__ uint4 weigh(const float* x, const float* g, float& squares) const {
    const float4 x0 = *reinterpret_cast<const float4*>(x);
    const float4 x1 = *reinterpret_cast<const float4*>(x + 4);
    const float4 g0 = __ldg(reinterpret_cast<const float4*>(g));
    const float4 g1 = __ldg(reinterpret_cast<const float4*>(g + 4));
    squares = fmaf(x0.x, x0.x, squares);
    squares = fmaf(x0.y, x0.y, squares);
    squares = fmaf(x0.z, x0.z, squares);
    squares = fmaf(x0.w, x0.w, squares);
    squares = fmaf(x1.x, x1.x, squares);
    squares = fmaf(x1.y, x1.y, squares);
    squares = fmaf(x1.z, x1.z, squares);
    squares = fmaf(x1.w, x1.w, squares);
    return make_uint4(pack_bf16(x0.x * g0.x, x0.y * g0.y),
                      pack_bf16(x0.z * g0.z, x0.w * g0.w),
                      pack_bf16(x1.x * g1.x, x1.y * g1.y),
                      pack_bf16(x1.z * g1.z, x1.w * g1.w));
  }

  // sum += chunk of w times the same inputs of x. Lane (g, t) holds the 8 inputs t * 8.. of row g of
  // either operand: the first four are the k-places 2t, 2t + 1, 2t + 8, 2t + 9 of one mma, the
  // others those of the next.
  __device__ void add_chunk(int chunk,
                            const unsigned char* w,
                            float (&sum)[kTileRows / 8][kPairs][4]) const {
    const int g = lane_ / 4;
    const int t = lane_ % 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int col = chunk * kSkinnyChunk + half * 32 + t * 8;
      uint4 xv[kPairs * 2];
#pragma unroll
      for (int i = 0; i < kPairs * 2; ++i) {
        const int row = i * 8 + g;
        xv[i] = make_uint4(0, 0, 0, 0);
        if (i < kRowGroups && row < p_.m && col < p_.k) {
          xv[i] = *reinterpret_cast<const uint4*>(x_ + row * x_pitch_ + col * 2);
        }
      }
#pragma unroll
      for (int j = 0; j < kTileRows / 8; ++j) {
        const uint4 wv = *reinterpret_cast<const uint4*>(w + (j * 8 + g) * 128 +
                                                         ((half * 4 + t) ^ ((g & 1) * 4)) * 16);
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const uint4 lo = xv[2 * i];
          const uint4 hi = xv[2 * i + 1];
          mma_bf16(sum[j][i], lo.x, hi.x, lo.y, hi.y, wv.x, wv.y);
          mma_bf16(sum[j][i], lo.z, hi.z, lo.w, hi.w, wv.z, wv.w);
        }
      }
    }
  }

  // meet [warps][m][kTileRows]
  __device__ void leave_sums(float* meet, const float (&sum)[kTileRows / 8][kPairs][4]) const {
    const int g = lane_ / 4;
    const int t = lane_ % 4;
#pragma unroll
    for (int i = 0; i < kRowGroups; ++i) {
      const int row = i * 8 + g;
      if (row < p_.m) {
        float* to = meet + (warp_ * p_.m + row) * kTileRows + t * 2;
#pragma unroll
        for (int j = 0; j < kTileRows / 8; ++j) {
          const float* from = sum[j][i / 2] + i % 2 * 2;
          *reinterpret_cast<float2*>(to + j * 8) = make_float2(from[0], from[1]);
        }
      }
    }
  }

  // What an output needs besides the sum is fetched before the loop over the chunks.
  __device__ void start_outputs(int tile, Output (&outputs)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const int o = static_cast<int>(threadIdx.x) + i * kSkinnyThreads;
      const int row = o / kTileRows;
      const int r = o % kTileRows;
      const int output = tile * span() + r;
      Output& out = outputs[i];
      out.valid = row < p_.m && r < span() && output < num_outputs();
      out.at = row * p_.y_stride + output;
      out.bias = 0.0F;
      out.bias_up = 0.0F;
      out.old = 0.0F;
      if (out.valid && p_.bias != nullptr) {
        out.bias = __ldg(p_.bias + output);
        out.bias_up = gate_ ? __ldg(p_.bias + half_ + output) : 0.0F;
      }
      if (out.valid && p_.epilogue == LinearEpilogue::kAdd) {
        out.old = static_cast<const float*>(p_.y)[out.at];
      }
    }
  }

  __device__ float total(const float* meet, int row, int r) const {
    float v = 0.0F;
#pragma unroll
    for (int w = 0; w < kSkinnyWarps; ++w) {
      v += meet[(w * p_.m + row) * kTileRows + r];
    }
    return v;
  }

  __device__ float inverse_rms(int row) const {
    float squares = 0.0F;
#pragma unroll
    for (int w = 0; w < kSkinnyWarps; ++w) {
      squares += squares_[w * p_.m + row];
    }
    return rsqrtf(squares / static_cast<float>(p_.k) + p_.norm_eps);
  }

  __device__ void finish_outputs(const float* meet, const Output (&outputs)[kOutputs]) const {
#pragma unroll
    for (int i = 0; i < kOutputs; ++i) {
      const Output& out = outputs[i];
      if (!out.valid) {
        continue;
      }
      const int o = static_cast<int>(threadIdx.x) + i * kSkinnyThreads;
      const int row = o / kTileRows;
      const int r = o % kTileRows;
      const float scale = p_.norm_weight != nullptr ? inverse_rms(row) : 1.0F;
      float v = fmaf(total(meet, row, r), scale, out.bias);
      if (gate_) {
        v = silu(v) * fmaf(total(meet, row, r + kTileRows / 2), scale, out.bias_up);
      }
      v += out.old;
      if (p_.y_f32) {
        static_cast<float*>(p_.y)[out.at] = v;
      } else {
        static_cast<__nv_bfloat16*>(p_.y)[out.at] = __float2bfloat16(v);
      }
    }
  }

  const SkinnyArgs& p_;
  int stages_;
  int num_tiles_;
  int lane_;
  int warp_;
  bool gate_;
  int half_;
  int warp_chunks_ = 0;
  int fill_tile_ = 0;
  int fill_chunk_ = 0;
  unsigned char* ring_ = nullptr;
  const unsigned char* x_ = nullptr;  // bf16 rows, in shared or in global memory
  int64_t x_pitch_ = 0;               // bytes
  float* sums_ = nullptr;
  float* squares_ = nullptr;  // [warps][m]
};

template <int kTileRows, int kRowGroups>
__global__ __launch_bounds__(kSkinnyThreads) void skinny_kernel(const __grid_constant__ Params p) {
  extern __shared__ __align__(128) unsigned char shared[];
  Block<kTileRows, kRowGroups> block(p, shared);
  block.fill_ring();
  block.prefetch_beyond(p.l2_chunks);
  if (p.a.norm_weight != nullptr) {
    block.prefetch_norm_weight();
  }
  // Whatever starts now only fills its own ring before it waits for this kernel, and this kernel
  // ends after the ones before it.
  pdl_release();
  pdl_wait();
  if (p.a.norm_weight != nullptr) {
    block.template stage_x<true>();
  } else if (p.stage_x) {
    block.template stage_x<false>();
  }
  block.run();
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
    WR_CUDA(cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kSkinnyMaxShared));
    raised.fetch_or(bit, std::memory_order_relaxed);
  }
  const skinny_detail::Params params{
      args, plan.stages, plan.num_tiles, plan.l2_chunks, plan.stage_x};
  launch(stream,
         "skinny",
         {dim3(static_cast<unsigned>(plan.num_blocks)), dim3(kSkinnyThreads), plan.shared_bytes},
         kernel,
         params);
}

}  // namespace warprow::cuda
