// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"
#include "device/view.h"
#include "kernels/rope/rope_kv_write.h"

#include <cstdint>

namespace warprow {

// A decoder layer's attention between its two projections: head norms and rope on Q and K, write of
// K and V to the cache, attention of this step's queries. Metadata comes from the stream's
// ForwardContext.
struct AttentionLayer {
  int32_t layer = 0;  // which KvLayerView
  int32_t group = 0;  // which KV group
  // False: qkv has queries alone, and an earlier layer has written the keys and values.
  bool own_kv = true;
  bool values_are_keys = false;  // V's columns of qkv get a copy of K's
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  int32_t rot_dim = 0;
  float norm_eps = 1e-6F;
  bool interleaved = false;     // rope's pairs lie side by side
  View<const float, 1> q_norm;  // dev f32 [head_dim] or empty
  View<const float, 1> k_norm;
  View<const float, 1> v_norm;       // dev f32 [head_dim] or empty
  View<const float, 1> wide_q_norm;  // dev f32 [heads * head_dim] or empty
  View<const float, 1> wide_k_norm;  // dev f32 [kv_heads * head_dim] or empty
  AttentionParams params;
  // Of an 8-bit cache, dev f32 [kv_heads]: those of the layer whose keys and values it reads.
  View<float, 1> k_scales;
  View<float, 1> v_scales;
  bool measures_scales = false;  // forwards set them from their keys and values first

  // qkv [T, (heads + 2 kv_heads) * head_dim], or queries alone, is rotated in place; cos and sin [T, rot_dim / 2]; out
  // [T, heads * head_dim].
  void forward(Stream& stream,
               ActView qkv,
               View<const float, 2> cos,
               View<const float, 2> sin,
               ActView out) const;

 private:
  // Sets the scales from rows that were written, and writes them again.
  void measure_scales(Stream& stream, RopeKvWriteArgs written) const;
};

}  // namespace warprow
