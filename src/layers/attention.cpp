// SPDX-License-Identifier: Apache-2.0
#include "layers/attention.h"

#include "attention/forward_context.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/kv_scales/kv_scales.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/rope/rope_kv_write.h"

namespace warprow {

void AttentionLayer::measure_scales(Stream& stream, RopeKvWriteArgs written) const {
  const int64_t first = int64_t{num_heads} * head_dim;
  const int64_t width = int64_t{num_kv_heads} * head_dim;
  const float most = most_of_f8(written.kv.dtype);
  kv_scales(stream, {written.qkv.columns(first, width), written.slot_mapping, k_scales, most});
  kv_scales(stream,
            {written.qkv.columns(first + width, width), written.slot_mapping, v_scales, most});
  // The row has its norms and rotation by now.
  written.q_norm = written.k_norm = written.v_norm = {};
  written.rot_dim = 0;
  rope_kv_write(stream, written);
}

void AttentionLayer::forward(Stream& stream,
                             ActView qkv,
                             View<const float, 2> cos,
                             View<const float, 2> sin,
                             ActView out) const {
  const ForwardContext& context = forward_context(stream);
  const ForwardGroup& mine = context.groups[static_cast<size_t>(group)];
  KvLayerView kv = context.kv_layers[static_cast<size_t>(layer)];
  kv.k_scales = k_scales.data;
  kv.v_scales = v_scales.data;

  if (values_are_keys) {
    const int64_t first = int64_t{num_heads} * head_dim;
    const int64_t width = int64_t{num_kv_heads} * head_dim;
    gather_rows(stream, {qkv.columns(first, width), {}, qkv.columns(first + width, width)});
  }
  if (!wide_q_norm.empty()) {
    const ActView q = qkv.columns(0, wide_q_norm.shape[0]);
    const ActView k = qkv.columns(wide_q_norm.shape[0], wide_k_norm.shape[0]);
    rms_norm(stream, {q, wide_q_norm, q, norm_eps});
    rms_norm(stream, {k, wide_k_norm, k, norm_eps});
  }
  RopeKvWriteArgs rope;
  rope.qkv = qkv;
  rope.cos = cos;
  rope.sin = sin;
  rope.slot_mapping = make_view<const int64_t>(mine.metadata.slot_mapping.data, qkv.shape[0]);
  rope.q_norm = q_norm;
  rope.k_norm = k_norm;
  rope.v_norm = v_norm;
  rope.kv = kv;
  if (!own_kv) {
    rope.kv.num_kv_heads = 0;
  }
  rope.num_q_heads = num_heads;
  rope.rot_dim = rot_dim;
  rope.interleaved = interleaved;
  rope.norm_eps = norm_eps;
  AttentionCall call;
  call.q = qkv.columns(0, static_cast<int64_t>(num_heads) * head_dim);
  call.out = out;
  call.num_heads = num_heads;
  call.kv = kv;
  call.params = params;
  const bool measures = measures_scales && own_kv;
  if (context.sink == nullptr && !measures &&
      mine.backend->takes_rope(stream, call, mine.metadata, rope)) {
    call.rope = &rope;
  } else {
    rope_kv_write(stream, rope);
  }
  if (measures) {
    measure_scales(stream, rope);
  }
  if (context.sink != nullptr) {
    context.sink->attention(stream, group, call);
  } else {
    mine.backend->forward(stream, call, mine.metadata);
  }
}

}  // namespace warprow
