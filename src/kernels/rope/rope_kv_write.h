// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// The steps between the QKV projection and attention: optional per-head norm, rotary embedding, write to the
// KV cache.
//
// Formula: q and k heads: optional RMSNorm over head_dim_k. Then, for each pair i < rot_dim / 2 with elements
//   (a, b): a' = a cos[t, i] - b sin[t, i], b' = b cos[t, i] + a sin[t, i]; the pair is (i, i + rot_dim / 2),
//   or (2i, 2i + 1) if interleaved. v heads: optional RMSNorm. Then k and v are written to the cache at slot_mapping[t].
// Shapes: qkv [T, (Hq + Hkv) * head_dim_k + Hkv * head_dim_v], q then k then v, any row stride; cos, sin [T,
//   rot_dim / 2]; q_norm, k_norm [head_dim_k], v_norm [head_dim_v] or empty; slot_mapping [T], slot = block * block_size + offset.
// Mapping: CPU: tokens in parallel, lanes along the head.
// Bytes moved: 8 * T * (Hq + Hkv) * head_dim_k + T * Hkv * (head_dim_k + head_dim_v) * cache element.
// Numerics: float32 without fused multiply-add, to round as transformers does; bf16 cache elements are
//   rounded to nearest even. An 8-bit cache gets x / scale of the KV head, rounded to nearest even; beyond the
//   largest number it gets that, and NaN stays NaN.
// Preconditions: q and k are rotated in place, and v is normalised in place; rot_dim is even and at most head_dim_k, 0 for no rotation.
//   Slot -1 is padding: nothing is written to the cache for it. Without KV heads q alone is rotated.
// Origin: Su et al., "RoFormer", 2021 (interleaved); the half-split order is GPT-NeoX's.
struct RopeKvWriteArgs {
  ActView qkv;
  View<const float, 2> cos;
  View<const float, 2> sin;
  View<const int64_t, 1> slot_mapping;
  View<const float, 1> q_norm;
  View<const float, 1> k_norm;
  View<const float, 1> v_norm = {};
  KvLayerView kv;
  int32_t num_q_heads = 0;
  int32_t rot_dim = 0;
  bool interleaved = false;
  float norm_eps = 1e-6F;
};

WR_OP(rope_kv_write, RopeKvWriteArgs);

namespace cuda {

// Whether sizes and addresses are such that lanes can load eight elements of a bf16 head at once.
bool rope_fits_vectors(const RopeKvWriteArgs& args);

}  // namespace cuda

}  // namespace warprow
