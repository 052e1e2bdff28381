// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/rope/rope_kv_write.h"
#include "kernels/simd/vec_cuda.cuh"

#include <algorithm>

// Formula, shapes, preconditions: rope_kv_write.h. qkv and the cache are bf16.
// Mapping: a head belongs to 8, 16 or 32 neighbouring lanes, eight elements each; where halves are
//   paired, the partner's elements come by a shuffle. A block of 128 threads takes 16, 8 or 4 heads
//   of one token at a time, and keeps that token's cosines and sines in registers. Few tokens: one
//   head a group, so that everything is in flight at once; many: a group goes through several.
//   Shapes that do not fit: a warp a head, element by element.
// Bytes moved: 4 * T * (Hq + 2 * Hkv) * head_dim, less what v does not write back.
// Numerics: float32 from the loaded bf16 to one rounding; the norm's squares are added eight in a
//   lane, then over the lanes as a butterfly: a head's result depends on that head alone.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

struct Heads {
  Bf16* qkv;
  int64_t qkv_stride;
  const float* cos;
  const float* sin;
  int64_t cos_stride;
  int64_t sin_stride;
  const int64_t* slots;
  const float* q_norm;  // null: none
  const float* k_norm;
  Bf16* k_cache;
  Bf16* v_cache;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
  int32_t block_size;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t dim_k;
  int32_t dim_v;
  int32_t rot_dim;
  float norm_eps;
};

// Where one head of a token lies. Heads are numbered q, then k, then v.
struct Head {
  Bf16* at;
  Bf16* cache;  // null: not written to the cache
  const float* norm;
  int32_t dim;
  bool rotated;
};

__device__ __forceinline__ Head head_of(const Heads& a, Bf16* row, int64_t slot, int h) {
  const int num_rotated = a.num_q_heads + a.num_kv_heads;
  Head head{row + int64_t{h} * a.dim_k, nullptr, nullptr, a.dim_k, true};
  if (h < a.num_q_heads) {
    head.norm = a.q_norm;
    return head;
  }
  const auto in_cache = [&](int kv_head) {
    const auto at = static_cast<uint32_t>(slot);  // a cache has fewer than 2^32 slots
    const auto size = static_cast<uint32_t>(a.block_size);
    return at / size * a.block_stride + at % size * a.token_stride + kv_head * a.head_stride;
  };
  if (h < num_rotated) {
    head.norm = a.k_norm;
    head.cache = slot < 0 ? nullptr : a.k_cache + in_cache(h - a.num_q_heads);
    return head;
  }
  const int v_head = h - num_rotated;
  return {row + int64_t{num_rotated} * a.dim_k + int64_t{v_head} * a.dim_v,
          slot < 0 ? nullptr : a.v_cache + in_cache(v_head),
          nullptr,
          a.dim_v,
          false};
}

template <int kLanes>
__device__ __forceinline__ float sum_of_lanes(float v) {
#pragma unroll
  for (int lanes = kLanes / 2; lanes > 0; lanes /= 2) {
    v += __shfl_xor_sync(0xffffffffU, v, lanes);
  }
  return v;
}

// One lane's eight angles: of its elements where halves are paired (the second half has the first
// one's), of its four pairs, twice each, where neighbours are.
template <bool kInterleaved>
struct Angles {
  float cos[kVec];
  float sin[kVec];

  __device__ __forceinline__ void load(const Heads& a, int64_t token, int first) {
    const float* c = a.cos + token * a.cos_stride;
    const float* s = a.sin + token * a.sin_stride;
    if constexpr (kInterleaved) {
      const float4 cs = *reinterpret_cast<const float4*>(c + first / 2);
      const float4 sn = *reinterpret_cast<const float4*>(s + first / 2);
      cos[0] = cs.x, cos[1] = cs.y, cos[2] = cs.z, cos[3] = cs.w;
      sin[0] = sn.x, sin[1] = sn.y, sin[2] = sn.z, sin[3] = sn.w;
    } else {
      const int half = a.rot_dim / 2;
      const int from = first < half ? first : first - half;
      load8(c + from, cos);
      load8(s + from, sin);
    }
  }
};

// All lanes of a warp call this, those of heads that stay as they are with `turn` false.
template <bool kInterleaved, int kLanes>
__device__ __forceinline__ void rotate(
    const Angles<kInterleaved>& angles, int rot_dim, int first, bool turn, float (&x)[kVec]) {
  turn = turn && first < rot_dim;
  if constexpr (kInterleaved) {
#pragma unroll
    for (int i = 0; i < kVec; i += 2) {
      const float p = x[i];
      const float q = x[i + 1];
      x[i] = turn ? p * angles.cos[i / 2] - q * angles.sin[i / 2] : p;
      x[i + 1] = turn ? q * angles.cos[i / 2] + p * angles.sin[i / 2] : q;
    }
  } else {
    const int half = rot_dim / 2;
    const bool is_first = first < half;
    const int partner = (is_first ? first + half : first - half) / kVec;
#pragma unroll
    for (int i = 0; i < kVec; ++i) {
      const float other = __shfl_sync(0xffffffffU, x[i], partner, kLanes);
      const float side = is_first ? -other : other;
      x[i] = turn ? x[i] * angles.cos[i] + side * angles.sin[i] : x[i];
    }
  }
}

__device__ __forceinline__ float norm_factor(float squares, const Heads& a) {
  return 1.0F / sqrtf(squares / static_cast<float>(a.dim_k) + a.norm_eps);
}

template <bool kInterleaved, int kLanes>
__global__ void __launch_bounds__(kThreads) write_heads(Heads a) {
  constexpr int kHeads = kThreads / kLanes;
  const int group = static_cast<int>(threadIdx.x) / kLanes;
  const int first = static_cast<int>(threadIdx.x) % kLanes * kVec;
  const int num_heads = a.num_q_heads + 2 * a.num_kv_heads;
  const auto step = static_cast<int>(gridDim.y) * kHeads;
  pdl_wait();
  pdl_release();
  const int64_t slot = a.slots[blockIdx.x];
  Bf16* row = a.qkv + blockIdx.x * a.qkv_stride;
  Angles<kInterleaved> angles = {};
  if (first < a.rot_dim) {
    angles.load(a, blockIdx.x, first);
  }
  // Every lane of a warp makes every round, for the shuffles.
  for (int base = static_cast<int>(blockIdx.y) * kHeads; base < num_heads; base += step) {
    const int h = min(base + group, num_heads - 1);
    const Head head = head_of(a, row, slot, h);
    const bool active = base + group < num_heads && first < head.dim;
    float x[kVec] = {};
    if (active) {
      load8(head.at + first, x);
    }
    if (a.q_norm != nullptr || a.k_norm != nullptr) {
      float squares = 0.0F;
#pragma unroll
      for (int i = 0; i < kVec; ++i) {
        squares = fmaf(x[i], x[i], squares);
      }
      const float factor = norm_factor(sum_of_lanes<kLanes>(squares), a);
      if (active && head.norm != nullptr) {
        float weight[kVec];
        load8(head.norm + first, weight);
#pragma unroll
        for (int i = 0; i < kVec; ++i) {
          x[i] = x[i] * factor * weight[i];
        }
      }
    }
    rotate<kInterleaved, kLanes>(angles, a.rot_dim, first, head.rotated, x);
    if (active && head.rotated) {
      store8(head.at + first, x);
    }
    if (active && head.cache != nullptr) {
      store8(head.cache + first, x);
    }
  }
}

// Any dimensions and alignment: a warp a head.
template <bool kInterleaved>
__global__ void __launch_bounds__(kThreads) write_heads_of_any_dim(Heads a) {
  pdl_wait();
  pdl_release();
  const auto h = static_cast<int>(blockIdx.y * (kThreads / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (h >= a.num_q_heads + 2 * a.num_kv_heads) {
    return;
  }
  const Head head = head_of(a, a.qkv + blockIdx.x * a.qkv_stride, a.slots[blockIdx.x], h);
  float factor = 1.0F;
  if (head.norm != nullptr) {
    float squares = 0.0F;
    for (int i = lane; i < head.dim; i += 32) {
      const float v = to_float(head.at[i]);
      squares = fmaf(v, v, squares);
    }
    factor = norm_factor(sum_of_lanes<32>(squares), a);
  }
  const auto normed = [&](int i) {
    const float v = to_float(head.at[i]);
    return head.norm != nullptr ? v * factor * head.norm[i] : v;
  };
  const auto put = [&](int i, float v) {
    if (head.rotated) {
      store(head.at + i, v);
    }
    if (head.cache != nullptr) {
      store(head.cache + i, v);
    }
  };
  const int half = head.rotated ? a.rot_dim / 2 : 0;
  for (int i = lane; i < half; i += 32) {
    const int low = kInterleaved ? 2 * i : i;
    const int high = kInterleaved ? 2 * i + 1 : i + half;
    const float p = normed(low);
    const float q = normed(high);
    const float c = a.cos[blockIdx.x * a.cos_stride + i];
    const float s = a.sin[blockIdx.x * a.sin_stride + i];
    put(low, p * c - q * s);
    put(high, q * c + p * s);
  }
  for (int i = 2 * half + lane; i < head.dim; i += 32) {
    put(i, normed(i));
  }
}

bool fits_vec(const RopeKvWriteArgs& args) {
  const KvLayerView& kv = args.kv;
  const int32_t rot_unit = args.interleaved ? kVec : 2 * kVec;
  return std::max(kv.head_dim_k, kv.head_dim_v) <= 32 * kVec && kv.head_dim_k % kVec == 0 &&
         kv.head_dim_v % kVec == 0 && args.rot_dim % rot_unit == 0 &&
         rows_fit_vec(args.qkv.data, args.qkv.stride, sizeof(Bf16)) &&
         rows_fit_vec(args.cos.data, args.cos.stride[0], sizeof(float)) &&
         rows_fit_vec(args.sin.data, args.sin.stride[0], sizeof(float)) &&
         rows_fit_vec(args.q_norm.data, 0, sizeof(float)) &&
         rows_fit_vec(args.k_norm.data, 0, sizeof(float)) &&
         rows_fit_vec(kv.k, kv.block_stride, sizeof(Bf16)) &&
         rows_fit_vec(kv.v, kv.head_stride, sizeof(Bf16)) &&
         rows_fit_vec(kv.v, kv.token_stride, sizeof(Bf16));
}

template <bool kInterleaved, int kLanes>
void launch_lanes(Stream& stream, const Heads& heads, unsigned tokens) {
  constexpr int kHeads = kThreads / kLanes;
  constexpr unsigned kManyTokens = 64;
  const int num_heads = heads.num_q_heads + 2 * heads.num_kv_heads;
  const int rounds = tokens < kManyTokens ? 1 : 3;
  const auto parts = static_cast<unsigned>(ceil_div(num_heads, kHeads * rounds));
  launch(stream,
         "rope_kv_write",
         {dim3(tokens, parts), kThreads},
         write_heads<kInterleaved, kLanes>,
         heads);
}

template <bool kInterleaved>
void launch_heads(Stream& stream, const RopeKvWriteArgs& args, const Heads& heads) {
  const auto tokens = static_cast<unsigned>(args.qkv.shape[0]);
  if (!fits_vec(args)) {
    const int num_heads = heads.num_q_heads + 2 * heads.num_kv_heads;
    const dim3 grid(tokens, static_cast<unsigned>(ceil_div(num_heads, kThreads / 32)));
    launch(stream, "rope_kv_write", {grid, kThreads}, write_heads_of_any_dim<kInterleaved>, heads);
    return;
  }
  const int lanes = std::max(heads.dim_k, heads.dim_v) / kVec;
  if (lanes <= 8) {
    launch_lanes<kInterleaved, 8>(stream, heads, tokens);
  } else if (lanes <= 16) {
    launch_lanes<kInterleaved, 16>(stream, heads, tokens);
  } else {
    launch_lanes<kInterleaved, 32>(stream, heads, tokens);
  }
}

void check_shapes(const RopeKvWriteArgs& args) {
  const KvLayerView& kv = args.kv;
  const int64_t tokens = args.qkv.shape[0];
  WR_CHECK_EQ(args.qkv.shape[1],
              int64_t{args.num_q_heads + kv.num_kv_heads} * kv.head_dim_k +
                  int64_t{kv.num_kv_heads} * kv.head_dim_v);
  WR_CHECK_EQ(args.slot_mapping.shape[0], tokens);
  WR_CHECK(args.qkv.dtype == DType::kBF16 && kv.dtype == DType::kBF16);
  WR_CHECK(args.rot_dim % 2 == 0);
  WR_CHECK_LE(args.rot_dim, kv.head_dim_k);
  if (args.rot_dim > 0) {
    WR_CHECK_EQ(args.cos.shape[0], tokens);
    WR_CHECK_EQ(args.sin.shape[0], tokens);
    WR_CHECK_EQ(args.cos.shape[1], args.rot_dim / 2);
    WR_CHECK_EQ(args.sin.shape[1], args.rot_dim / 2);
  }
  WR_CHECK(args.q_norm.empty() || args.q_norm.shape[0] == kv.head_dim_k);
  WR_CHECK(args.k_norm.empty() || args.k_norm.shape[0] == kv.head_dim_k);
}

}  // namespace

void rope_kv_write(Stream& stream, const RopeKvWriteArgs& args) {
  check_shapes(args);
  if (args.qkv.shape[0] == 0) {
    return;
  }
  const KvLayerView& kv = args.kv;
  const Heads heads{
      .qkv = static_cast<Bf16*>(args.qkv.data),
      .qkv_stride = args.qkv.stride,
      .cos = args.cos.data,
      .sin = args.sin.data,
      .cos_stride = args.cos.stride[0],
      .sin_stride = args.sin.stride[0],
      .slots = args.slot_mapping.data,
      .q_norm = args.q_norm.data,
      .k_norm = args.k_norm.data,
      .k_cache = reinterpret_cast<Bf16*>(kv.k),
      .v_cache = reinterpret_cast<Bf16*>(kv.v),
      .block_stride = kv.block_stride,
      .head_stride = kv.head_stride,
      .token_stride = kv.token_stride,
      .block_size = kv.block_size,
      .num_q_heads = args.num_q_heads,
      .num_kv_heads = kv.num_kv_heads,
      .dim_k = kv.head_dim_k,
      .dim_v = kv.head_dim_v,
      .rot_dim = args.rot_dim,
      .norm_eps = args.norm_eps,
  };
  if (args.interleaved) {
    launch_heads<true>(stream, args, heads);
  } else {
    launch_heads<false>(stream, args, heads);
  }
}

}  // namespace warprow::cuda
