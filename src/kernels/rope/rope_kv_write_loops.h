// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/cpu/cache_kind.h"
#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// RopeKvWriteArgs as plain pointers.
struct RopeKvLoop {
  float* qkv;
  int64_t qkv_stride;
  const float* cos;
  const float* sin;
  int64_t cos_stride;
  int64_t sin_stride;
  const int64_t* slots;
  const float* q_norm;  // null: none
  const float* k_norm;
  const float* v_norm;
  void* k_cache;
  void* v_cache;
  const float* k_scales;  // of an 8-bit cache
  const float* v_scales;
  int64_t block_stride;
  int64_t head_stride;
  int64_t token_stride;
  int32_t block_size;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t head_dim_k;
  int32_t head_dim_v;
  int32_t rot_dim;
  float norm_eps;
  CacheKind kind;
  bool interleaved;
};

// Processes tokens [begin, end).
WR_ISA_DECLARE(void, rope_kv_write_tokens, (const RopeKvLoop& a, int64_t begin, int64_t end));

}  // namespace warprow::cpu
