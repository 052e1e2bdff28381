// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/native/decode_tiles.cuh"
#include "kernels/cuda/mbarrier.cuh"
#include "kernels/rope/rope_head.cuh"

#include <cstdint>

// Norms, rotation and KV write inside the decode kernel (DecodeRope), with rope_kv_write's bits.
namespace warprow::cuda {
namespace {

// A lane's share of a token's cosines and sines; zeros if none of its elements is rotated.
struct Turn {
  float4 cos = {};
  float4 sin = {};
  bool any;

  __device__ __forceinline__ Turn(const DecodeRope& rope, int64_t tok, int lane, bool rotated)
      : any(rotated && lane * kVec < rope.rot_dim) {
    if (any) {
      cos = *reinterpret_cast<const float4*>(rope.cos + tok * rope.cos_stride + lane * 4);
      sin = *reinterpret_cast<const float4*>(rope.sin + tok * rope.sin_stride + lane * 4);
    }
  }
};

// Norms and rotates a head. lane: of the head's kDim / 8, all of which take part. norm: null if the head has none; norms:
// whether any head of the warp has one.
template <int kDim>
__device__ __forceinline__ uint4 turn_head(const DecodeRope& rope,
                                           bool norms,
                                           const Bf16* head,
                                           const float* norm,
                                           const Quads<false>& quads,
                                           const Turn& turn) {
  const uint4 raw = quads.load(head);
  float weight[kVec] = {};
  if (norm != nullptr) {
    quads.load(norm, weight);
  }
  float x[kVec];
  unpack8(raw, x);
  if (norms) {
    norm_head<kDim / kVec>(norm != nullptr, kDim, rope.norm_eps, weight, x);
  }
  if (turn.any) {
    rotate<false>(turn.cos, turn.sin, x);
  }
  return pack8(x);
}

// A warp: prefetches the norms' weights to L1. No earlier kernel writes them.
template <int kDim>
__device__ __forceinline__ void touch_norms(const DecodeRope& rope) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  for (const float* norm : {rope.q_norm, rope.k_norm, rope.v_norm}) {
    if (norm != nullptr && lane * 32 < kDim) {
      float unused;
      asm volatile("ld.global.ca.f32 %0, [%1];" : "=f"(unused) : "l"(norm + lane * 32));
    }
  }
}

// Elements between the queries of two pairs in shared memory: no bank conflicts.
template <int kDim>
constexpr int kQueryPitch = kDim + 8;

// The compute warps: norm and rotate the queries of a piece, and store them in shared memory by pair.
template <int kDim>
__device__ void put_queries(const NativeParams& p, const Piece& piece, Bf16* to) {
  constexpr int kLanes = kDim / kVec;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const Quads<false> quads(lane, p.rope.rot_dim);
  const int pairs = piece.item.num_toks * p.group;
  for (int first = 0; first < pairs; first += kDecodeThreads / kLanes) {
    const int pair = first + static_cast<int>(threadIdx.x) / kLanes;
    const int read = min(pair, pairs - 1);  // shuffles need every lane
    const int query = query_of(p, piece.item, read);
    const int64_t tok = piece.item.first_tok + query;
    const auto* head = static_cast<const Bf16*>(p.q) + tok * p.q_stride +
                       ((piece.head - query) * p.group + read) * kDim;
    const uint4 turned = turn_head<kDim>(p.rope,
                                         p.rope.q_norm != nullptr,
                                         head,
                                         p.rope.q_norm,
                                         quads,
                                         Turn(p.rope, tok, lane, true));
    if (pair < pairs) {
      quads.store(to + pair * kQueryPitch<kDim>, turned);
    }
  }
}

// A warp: norms and rotates this step's keys and values among those of a piece, and writes them to the cache.
template <int kDim>
__device__ void write_new_kv(const NativeParams& p, const Piece& piece) {
  constexpr int kLanes = kDim / kVec;
  const DecodeItem& item = piece.item;
  const int warp_lane = static_cast<int>(threadIdx.x) % 32;
  const int lane = warp_lane % kLanes;
  const int32_t begin = max(item.tile * kDecodeTile, item.num_old_keys);
  const int32_t end = min((item.tile + item.num_tiles) * kDecodeTile, item.seq_len);
  const int heads = 2 * (end - begin);  // keys' and values' in turn
  for (int first = 0; first < heads; first += 32 / kLanes) {
    const int index = first + warp_lane / kLanes;
    const int read = min(index, heads - 1);  // shuffles need every lane
    const bool is_value = read % 2 == 1;
    const int32_t key = begin + read / 2;
    const int64_t tok = item.first_tok + item.num_toks - item.seq_len + key;
    const int behind = p.num_kv_heads * (p.group + (is_value ? 1 : 0)) + piece.head;
    const Quads<false> quads(lane, is_value ? 0 : p.rope.rot_dim);
    const uint4 turned =
        turn_head<kDim>(p.rope,
                        p.rope.k_norm != nullptr || p.rope.v_norm != nullptr,
                        static_cast<const Bf16*>(p.q) + tok * p.q_stride + behind * kDim,
                        is_value ? p.rope.v_norm : p.rope.k_norm,
                        quads,
                        Turn(p.rope, tok, lane, !is_value));
    const int32_t block = block_of(p, key / kDecodeTile);
    const int64_t at = __ldcg(p.block_table.cells + item.table_begin + block) * p.block_bytes +
                       piece.head * p.head_bytes +
                       int64_t{key - block * p.block_size} * p.token_bytes;
    if (index < heads) {
      quads.store(reinterpret_cast<Bf16*>((is_value ? p.v : p.k) + at), turned);
    }
  }
  fence_async_proxy_global();  // TMA reads them
}

}  // namespace
}  // namespace warprow::cuda
