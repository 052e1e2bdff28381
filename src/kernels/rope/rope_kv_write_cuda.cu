// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/float8.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/rope/rope_head.cuh"
#include "kernels/rope/rope_kv_write.h"

#include <algorithm>
#include <type_traits>

// Formula, shapes, preconditions: rope_kv_write.h. qkv and the cache are both bf16 or both
// float32, or the cache has 8-bit floats.
// Mapping: 8, 16 or 32 adjacent lanes share a head, with four pairs or eight elements each. A CTA of 128
//   threads takes 16, 8 or 4 heads of one token, or with many tokens of four adjacent ones. Shapes that do not fit,
//   and float32: a warp a head, one element at a time.
// Bytes moved: T * ((4 * Hq + 6 * Hkv) * head_dim_k + 4 * Hkv * head_dim_v); twice as many with float32.
// Numerics: float32 from the loaded elements to one rounding. Of the norm's squares, each lane adds eight, then a
//   butterfly adds over the lanes: a head's result depends on that head alone.
namespace warprow::cuda {
namespace {

constexpr int kThreads = 128;

// A cache element of 8 bits, of either format.
struct F8 {
  uint8_t bits;
};

// T: of qkv; C: of the cache.
template <typename T, typename C>
struct Heads {
  T* qkv;
  int64_t qkv_stride;
  const float* cos;
  const float* sin;
  int64_t cos_stride;
  int64_t sin_stride;
  const int64_t* slots;
  const float* q_norm;  // null: none
  const float* k_norm;
  const float* v_norm;
  C* k_cache;
  C* v_cache;
  const float* k_scales;  // with F8
  const float* v_scales;
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
  bool e5m2;  // F8's format
};

// Where the first head of a slot's token is in the cache, in elements.
template <typename T, typename C>
__device__ __forceinline__ int64_t token_at(const Heads<T, C>& a, int64_t slot) {
  const auto at = static_cast<uint32_t>(slot);  // a cache has fewer than 2^32 slots
  const auto size = static_cast<uint32_t>(a.block_size);
  return at / size * a.block_stride + at % size * a.token_stride;
}

// One head of a token, in qkv and in the cache. Heads are numbered q, then k, then v.
template <typename T, typename C>
struct Head {
  T* at;
  C* cache;  // null: not written to the cache
  const float* norm;
  int32_t dim;
  bool rotated;
  const float* scale;  // with F8

  // Whether the row gets the result too.
  [[nodiscard]] __device__ bool changes() const { return rotated || norm != nullptr; }
};

template <typename T, typename C>
__device__ __forceinline__ Head<T, C> head_of(const Heads<T, C>& a, T* row, int64_t slot, int h) {
  const int num_rotated = a.num_q_heads + a.num_kv_heads;
  Head<T, C> head{row + int64_t{h} * a.dim_k, nullptr, nullptr, a.dim_k, true, nullptr};
  if (h < a.num_q_heads) {
    head.norm = a.q_norm;
    return head;
  }
  const auto in_cache = [&](int kv_head) { return token_at(a, slot) + kv_head * a.head_stride; };
  if (h < num_rotated) {
    head.norm = a.k_norm;
    head.cache = slot < 0 ? nullptr : a.k_cache + in_cache(h - a.num_q_heads);
    head.scale = a.k_scales + (h - a.num_q_heads);
    return head;
  }
  const int v_head = h - num_rotated;
  return {row + int64_t{num_rotated} * a.dim_k + int64_t{v_head} * a.dim_v,
          slot < 0 ? nullptr : a.v_cache + in_cache(v_head),
          a.v_norm,
          a.dim_v,
          false,
          a.v_scales + v_head};
}

// The lane's elements of an 8-bit cache's head.
template <bool kInterleaved>
__device__ __forceinline__ void store_f8(
    const Quads<kInterleaved>& quads, F8* at, const float (&x)[kVec], float scale, bool e5m2) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const float* four = x + 4 * i;
    const uint32_t first = f8_of_floats(__fdiv_rn(four[0], scale), __fdiv_rn(four[1], scale), e5m2);
    const uint32_t second =
        f8_of_floats(__fdiv_rn(four[2], scale), __fdiv_rn(four[3], scale), e5m2);
    *reinterpret_cast<uint32_t*>(at + (i == 0 ? quads.low : quads.high)) = first | second << 16;
  }
}

// A group of lanes takes a head of one token. The norms' weights, which no kernel writes, are loaded before
// griddepcontrol.wait.
template <bool kInterleaved, int kLanes, typename C>
__global__ void __launch_bounds__(kThreads) write_heads(Heads<Bf16, C> a) {
  constexpr bool kF8 = std::is_same_v<C, F8>;
  constexpr int kHeads = kThreads / kLanes;
  const int number = static_cast<int>(blockIdx.y * kHeads + threadIdx.x / kLanes);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  Bf16* row = a.qkv + blockIdx.x * a.qkv_stride;
  const Head<Bf16, C> kind = head_of(a, row, -1, number);
  const Quads<kInterleaved> quads(lane, kind.rotated ? a.rot_dim : 0);
  // Lanes without a head stay active to the end, for the shuffles.
  const bool active = number < a.num_q_heads + 2 * a.num_kv_heads && lane * kVec < kind.dim;
  float weight[kVec] = {};
  if (active && kind.norm != nullptr) {
    quads.load(kind.norm, weight);
  }
  pdl_release();
  pdl_wait();
  const int64_t slot = a.slots[blockIdx.x];
  uint4 raw = {};
  if (active) {
    raw = quads.load(kind.at);
  }
  const bool norms = a.q_norm != nullptr || a.k_norm != nullptr || a.v_norm != nullptr;
  const bool turns = lane * kVec < a.rot_dim;
  float4 cos = {};
  float4 sin = {};
  if (turns) {
    cos = *reinterpret_cast<const float4*>(a.cos + blockIdx.x * a.cos_stride + lane * 4);
    sin = *reinterpret_cast<const float4*>(a.sin + blockIdx.x * a.sin_stride + lane * 4);
  }
  const Head<Bf16, C> head = head_of(a, row, slot, number);
  float x[kVec];
  if (kF8 || norms || head.rotated) {
    unpack8(raw, x);
    if (norms) {
      norm_head<kLanes>(head.norm != nullptr, head.dim, a.norm_eps, weight, x);
    }
    if (head.rotated && turns) {
      rotate<kInterleaved>(cos, sin, x);
    }
    raw = pack8(x);
  }
  if (active && head.changes()) {
    quads.store(head.at, raw);
  }
  if (active && head.cache != nullptr) {
    if constexpr (kF8) {
      store_f8(quads, head.cache, x, *head.scale, a.e5m2);
    } else {
      quads.store(head.cache, raw);
    }
  }
}

constexpr int kToks = 4;

// Sums over kLanes adjacent lanes, of a value for each token, with the bits of sum_of_lanes. The first exchanges halve the
// tokens that a lane adds up, so that in the end it has the sum of one: lane_of_tok has that of a token.
template <int kLanes>
__device__ __forceinline__ float own_sum(float (&v)[kToks], int lane) {
  int far = kLanes / 2;
#pragma unroll
  for (int toks = kToks / 2; toks > 0; toks /= 2, far /= 2) {
    const bool upper = (lane & far) != 0;
#pragma unroll
    for (int i = 0; i < toks; ++i) {
      const float own = upper ? v[i + toks] : v[i];
      const float other = upper ? v[i] : v[i + toks];
      v[i] = own + __shfl_xor_sync(~0U, other, far);
    }
  }
#pragma unroll
  for (; far > 0; far /= 2) {
    v[0] += __shfl_xor_sync(~0U, v[0], far);
  }
  return v[0];
}
template <int kLanes>
constexpr int lane_of_tok(int tok) {
  return tok * (kLanes / kToks);
}

// For many tokens: a group of lanes takes a head of kToks tokens, so that it computes addresses, and for norms the roots, once
// for all of them. blockIdx.x: heads; blockIdx.y: tokens.
template <bool kInterleaved, int kLanes, typename C>
__global__ void __launch_bounds__(kThreads) write_heads_of_tokens(Heads<Bf16, C> a,
                                                                  int32_t num_toks) {
  constexpr bool kF8 = std::is_same_v<C, F8>;
  constexpr int kHeads = kThreads / kLanes;
  const int number = static_cast<int>(blockIdx.x * kHeads + threadIdx.x / kLanes);
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int64_t first = int64_t{blockIdx.y} * kToks;
  // In qkv that of the first token, in the cache that of slot 0.
  const Head<Bf16, C> head = head_of(a, a.qkv + first * a.qkv_stride, 0, number);
  const Quads<kInterleaved> quads(lane, head.rotated ? a.rot_dim : 0);
  // Lanes without a head stay active to the end, for the shuffles.
  const bool active = number < a.num_q_heads + 2 * a.num_kv_heads && lane * kVec < head.dim;
  const int count = active ? min(kToks, static_cast<int>(num_toks - first)) : 0;
  const bool turns = head.rotated && lane * kVec < a.rot_dim;
  const bool norms = __any_sync(~0U, active && head.norm != nullptr);
  float weight[kVec] = {};
  if (active && head.norm != nullptr) {
    quads.load(head.norm, weight);
  }
  pdl_release();
  pdl_wait();
  uint4 raw[kToks] = {};
  int64_t slots[kToks];
  float4 cos[kToks] = {};
  float4 sin[kToks] = {};
#pragma unroll
  for (int i = 0; i < kToks; ++i) {
    slots[i] = -1;
    if (i < count) {
      raw[i] = quads.load(head.at + i * a.qkv_stride);
      if (head.cache != nullptr) {
        slots[i] = a.slots[first + i];
      }
      if (turns) {
        cos[i] = *reinterpret_cast<const float4*>(a.cos + (first + i) * a.cos_stride + lane * 4);
        sin[i] = *reinterpret_cast<const float4*>(a.sin + (first + i) * a.sin_stride + lane * 4);
      }
    }
  }
  float factor = 1.0F;
  if (norms) {
    float squares[kToks];
#pragma unroll
    for (int i = 0; i < kToks; ++i) {
      float x[kVec];
      unpack8(raw[i], x);
      squares[i] = lane_squares(x);
    }
    factor = norm_factor(own_sum<kLanes>(squares, lane), head.dim, a.norm_eps);
  }
#pragma unroll
  for (int i = 0; i < kToks; ++i) {
    float x[kVec];
    unpack8(raw[i], x);
    if (norms) {
      const float of_tok = __shfl_sync(~0U, factor, lane_of_tok<kLanes>(i), kLanes);
      if (head.norm != nullptr) {
        apply_norm(of_tok, weight, x);
      }
    }
    if (turns) {
      rotate<kInterleaved>(cos[i], sin[i], x);
    }
    if (head.changes()) {
      raw[i] = pack8(x);
      if (i < count) {
        quads.store(head.at + i * a.qkv_stride, raw[i]);
      }
    }
    if (slots[i] >= 0) {
      C* cache = head.cache + token_at(a, slots[i]);
      if constexpr (kF8) {
        store_f8(quads, cache, x, *head.scale, a.e5m2);
      } else {
        quads.store(cache, raw[i]);
      }
    }
  }
}

// For any dimensions and alignment: a warp a head.
template <bool kInterleaved, typename T, typename C>
__global__ void __launch_bounds__(kThreads) write_heads_of_any_dim(Heads<T, C> a) {
  pdl_release();
  pdl_wait();
  const auto h = static_cast<int>(blockIdx.y * (kThreads / 32) + threadIdx.x / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (h >= a.num_q_heads + 2 * a.num_kv_heads) {
    return;
  }
  const Head<T, C> head = head_of(a, a.qkv + blockIdx.x * a.qkv_stride, a.slots[blockIdx.x], h);
  float factor = 1.0F;
  if (head.norm != nullptr) {
    float squares = 0.0F;
    for (int i = lane; i < head.dim; i += 32) {
      const float v = to_float(head.at[i]);
      squares = fmaf(v, v, squares);
    }
    factor = norm_factor(sum_of_lanes<32>(squares), head.dim, a.norm_eps);
  }
  const auto normed = [&](int i) {
    const float v = to_float(head.at[i]);
    return head.norm != nullptr ? v * factor * head.norm[i] : v;
  };
  const auto put = [&](int i, float v) {
    if (head.changes()) {
      store(head.at + i, v);
    }
    if (head.cache != nullptr) {
      if constexpr (std::is_same_v<C, F8>) {
        head.cache[i].bits =
            static_cast<uint8_t>(f8_of_floats(__fdiv_rn(v, *head.scale), 0.0F, a.e5m2));
      } else {
        store(head.cache + i, v);
      }
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

}  // namespace

bool rope_fits_vectors(const RopeKvWriteArgs& args) {
  const KvLayerView& kv = args.kv;
  return std::max(kv.head_dim_k, kv.head_dim_v) <= 32 * kVec && kv.head_dim_k % kVec == 0 &&
         kv.head_dim_v % kVec == 0 && args.rot_dim % kVec == 0 &&
         rows_fit_vec(args.qkv.data, args.qkv.stride, sizeof(Bf16)) &&
         rows_fit_vec(args.cos.data, args.cos.stride[0], sizeof(float)) &&
         rows_fit_vec(args.sin.data, args.sin.stride[0], sizeof(float)) &&
         rows_fit_vec(args.q_norm.data, 0, sizeof(float)) &&
         rows_fit_vec(args.k_norm.data, 0, sizeof(float)) &&
         rows_fit_vec(args.v_norm.data, 0, sizeof(float)) &&
         rows_fit_vec(kv.k, kv.block_stride, sizeof(Bf16)) &&
         rows_fit_vec(kv.v, kv.head_stride, sizeof(Bf16)) &&
         rows_fit_vec(kv.v, kv.token_stride, sizeof(Bf16));  // more than an 8-bit cache needs
}

namespace {

template <bool kInterleaved, int kLanes, typename C>
void launch_lanes(Stream& stream, const Heads<Bf16, C>& heads, unsigned tokens) {
  constexpr unsigned kManyTokens = 512;
  constexpr unsigned kMaxGridY = 65535;
  const int num_heads = heads.num_q_heads + 2 * heads.num_kv_heads;
  const auto head_blocks = static_cast<unsigned>(ceil_div(num_heads, kThreads / kLanes));
  const unsigned token_blocks = ceil_div(tokens, static_cast<unsigned>(kToks));
  if (tokens < kManyTokens || token_blocks > kMaxGridY) {
    launch(stream,
           "rope_kv_write",
           {dim3(tokens, head_blocks), kThreads},
           write_heads<kInterleaved, kLanes, C>,
           heads);
  } else {
    launch(stream,
           "rope_kv_write",
           {dim3(head_blocks, token_blocks), kThreads},
           write_heads_of_tokens<kInterleaved, kLanes, C>,
           heads,
           static_cast<int32_t>(tokens));
  }
}

template <bool kInterleaved, typename T, typename C>
void launch_any_dim(Stream& stream, const Heads<T, C>& heads, unsigned tokens) {
  const int num_heads = heads.num_q_heads + 2 * heads.num_kv_heads;
  const dim3 grid(tokens, static_cast<unsigned>(ceil_div(num_heads, kThreads / 32)));
  launch(
      stream, "rope_kv_write", {grid, kThreads}, write_heads_of_any_dim<kInterleaved, T, C>, heads);
}

template <bool kInterleaved, typename C>
void launch_heads(Stream& stream, const RopeKvWriteArgs& args, const Heads<float, C>& heads) {
  launch_any_dim<kInterleaved>(stream, heads, static_cast<unsigned>(args.qkv.shape[0]));
}

template <bool kInterleaved, typename C>
void launch_heads(Stream& stream, const RopeKvWriteArgs& args, const Heads<Bf16, C>& heads) {
  const auto tokens = static_cast<unsigned>(args.qkv.shape[0]);
  if (!rope_fits_vectors(args)) {
    launch_any_dim<kInterleaved>(stream, heads, tokens);
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
  WR_CHECK(args.qkv.dtype == DType::kBF16 || args.qkv.dtype == DType::kF32);
  WR_CHECK(args.qkv.dtype == kv.dtype || (is_f8(kv.dtype) && args.qkv.dtype == DType::kBF16 &&
                                          kv.k_scales != nullptr && kv.v_scales != nullptr),
           "KV {}",
           dtype_name(kv.dtype));
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
  WR_CHECK(args.v_norm.empty() || args.v_norm.shape[0] == kv.head_dim_v);
}

template <typename T, typename C>
void write_as(Stream& stream, const RopeKvWriteArgs& args) {
  const KvLayerView& kv = args.kv;
  const Heads<T, C> heads{
      .qkv = static_cast<T*>(args.qkv.data),
      .qkv_stride = args.qkv.stride,
      .cos = args.cos.data,
      .sin = args.sin.data,
      .cos_stride = args.cos.stride[0],
      .sin_stride = args.sin.stride[0],
      .slots = args.slot_mapping.data,
      .q_norm = args.q_norm.data,
      .k_norm = args.k_norm.data,
      .v_norm = args.v_norm.data,
      .k_cache = reinterpret_cast<C*>(kv.k),
      .v_cache = reinterpret_cast<C*>(kv.v),
      .k_scales = kv.k_scales,
      .v_scales = kv.v_scales,
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
      .e5m2 = kv.dtype == DType::kF8E5M2,
  };
  if (args.interleaved) {
    launch_heads<true>(stream, args, heads);
  } else {
    launch_heads<false>(stream, args, heads);
  }
}

}  // namespace

void rope_kv_write(Stream& stream, const RopeKvWriteArgs& args) {
  check_shapes(args);
  if (args.qkv.shape[0] == 0) {
    return;
  }
  if (args.qkv.dtype == DType::kF32) {
    write_as<float, float>(stream, args);
  } else if (is_f8(args.kv.dtype)) {
    write_as<Bf16, F8>(stream, args);
  } else {
    write_as<Bf16, Bf16>(stream, args);
  }
}

}  // namespace warprow::cuda
