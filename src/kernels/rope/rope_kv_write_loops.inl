// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_kv_write_loops.h"
#include "kernels/simd/float8.inl"
#include "kernels/simd/norm_row.inl"

namespace warprow::cpu {
namespace {

inline void rotate_halves(float* x, const float* cos, const float* sin, int half) {
  float* y = x + half;
  int i = 0;
  for (; i + kLanes <= half; i += kLanes) {
    const VecF a = load(x + i);
    const VecF b = load(y + i);
    const VecF c = load(cos + i);
    const VecF s = load(sin + i);
    store(x + i, a * c - b * s);
    store(y + i, b * c + a * s);
  }
  for (; i < half; ++i) {
    const float a = x[i];
    const float b = y[i];
    x[i] = a * cos[i] - b * sin[i];
    y[i] = b * cos[i] + a * sin[i];
  }
}

inline void rotate_pairs(float* x, const float* cos, const float* sin, int half) {
  for (int i = 0; i < half; ++i) {
    const float a = x[2 * i];
    const float b = x[2 * i + 1];
    x[2 * i] = a * cos[i] - b * sin[i];
    x[2 * i + 1] = b * cos[i] + a * sin[i];
  }
}

inline void write_bf16(uint16_t* out, const float* x, int n) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store_bf16(out + i, load(x + i));
  }
  if (i < n) {
    uint16_t rest[kLanes];
    store_bf16(rest, load_n(x + i, n - i, 0.0F));
    __builtin_memcpy(out + i, rest, static_cast<unsigned>(n - i) * sizeof(uint16_t));
  }
}

template <typename F8>
inline void write_f8(uint8_t* out, const float* x, int n, float scale) {
  int i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    store(out + i, to_f8<F8>(load(x + i) / scale));
  }
  if (i < n) {
    const VecB rest = to_f8<F8>(load_n(x + i, n - i, 0.0F) / scale);
    __builtin_memcpy(out + i, &rest, static_cast<unsigned>(n - i));
  }
}

// scales: of an 8-bit cache, by head.
inline void write_head(
    CacheKind kind, void* cache, int64_t at, const float* x, int n, const float* scales, int head) {
  switch (kind) {
    case CacheKind::kF32:
      __builtin_memcpy(
          static_cast<float*>(cache) + at, x, static_cast<unsigned>(n) * sizeof(float));
      return;
    case CacheKind::kBF16:
      return write_bf16(static_cast<uint16_t*>(cache) + at, x, n);
    case CacheKind::kF8E4M3:
      return write_f8<E4M3>(static_cast<uint8_t*>(cache) + at, x, n, scales[head]);
    case CacheKind::kF8E5M2:
      return write_f8<E5M2>(static_cast<uint8_t*>(cache) + at, x, n, scales[head]);
  }
}

inline void norm_and_rotate(const RopeKvLoop& a, int64_t token, const float* norm, float* head) {
  if (norm != nullptr) {
    norm_row(head, norm, a.norm_eps, a.head_dim_k, head);
  }
  const float* cos = a.cos + token * a.cos_stride;
  const float* sin = a.sin + token * a.sin_stride;
  if (a.interleaved) {
    rotate_pairs(head, cos, sin, a.rot_dim / 2);
  } else {
    rotate_halves(head, cos, sin, a.rot_dim / 2);
  }
}

}  // namespace

void WR_ISA_NAME(rope_kv_write_tokens)(const RopeKvLoop& a, int64_t begin, int64_t end) {
  for (int64_t t = begin; t < end; ++t) {
    float* row = a.qkv + t * a.qkv_stride;
    for (int h = 0; h < a.num_q_heads; ++h) {
      norm_and_rotate(a, t, a.q_norm, row + h * a.head_dim_k);
    }
    float* keys = row + a.num_q_heads * a.head_dim_k;
    float* values = keys + a.num_kv_heads * a.head_dim_k;
    for (int h = 0; h < a.num_kv_heads; ++h) {
      norm_and_rotate(a, t, a.k_norm, keys + h * a.head_dim_k);
      if (a.v_norm != nullptr) {
        float* value = values + h * a.head_dim_v;
        norm_row(value, a.v_norm, a.norm_eps, a.head_dim_v, value);
      }
    }
    const int64_t slot = a.slots[t];
    if (slot < 0) {
      continue;
    }
    const int64_t at = slot / a.block_size * a.block_stride + slot % a.block_size * a.token_stride;
    for (int h = 0; h < a.num_kv_heads; ++h) {
      const int64_t to = at + h * a.head_stride;
      write_head(a.kind, a.k_cache, to, keys + h * a.head_dim_k, a.head_dim_k, a.k_scales, h);
      write_head(a.kind, a.v_cache, to, values + h * a.head_dim_v, a.head_dim_v, a.v_scales, h);
    }
  }
}

}  // namespace warprow::cpu
