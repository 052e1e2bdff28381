// SPDX-License-Identifier: Apache-2.0
#include "kernels/rope/rope_kv_write_loops.h"
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

inline void write_head(void* cache, int64_t at, const float* x, int n, bool bf16) {
  if (bf16) {
    write_bf16(static_cast<uint16_t*>(cache) + at, x, n);
  } else {
    __builtin_memcpy(static_cast<float*>(cache) + at, x, static_cast<unsigned>(n) * sizeof(float));
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
      write_head(a.k_cache, at + h * a.head_stride, keys + h * a.head_dim_k, a.head_dim_k, a.bf16);
      write_head(
          a.v_cache, at + h * a.head_stride, values + h * a.head_dim_v, a.head_dim_v, a.bf16);
    }
  }
}

}  // namespace warprow::cpu
