// SPDX-License-Identifier: Apache-2.0
// Plain arithmetic, kept out of the CUDA files, so that a build without CUDA can plan for a GPU.
#include "base/math.h"
#include "kernels/attention/native/params.h"
#include "kernels/attention/native/scheduled_attention.h"

#include <algorithm>

namespace warprow {

cuda::ScratchLayout cuda::native_scratch_layout(
    int32_t num_kv_heads, int32_t group, int32_t head_dim, int32_t max_rows, int32_t decode_len) {
  constexpr size_t kAlign = 256;
  const DecodeChunks chunks = decode_chunks(group, decode_len);
  const int32_t max_chunks = std::min(max_rows * chunks.chunks, kMaxScheduledRows);
  ScratchLayout layout;
  size_t at = round_up(sizeof(DecodeItem) * (max_chunks + kMaxParts), kAlign);
  layout.counts = at;
  at += kAlign;
  layout.arrivals = at;
  at += round_up(sizeof(int32_t) * max_chunks * num_kv_heads * kDecodeWarps, kAlign);
  layout.prefill_tiles = at;
  at += round_up(sizeof(int32_t) * (max_rows + 1), kAlign);
  layout.prompt_arrivals = at;
  at += round_up(sizeof(int32_t) * kMaxPromptParts, kAlign);
  layout.partials = at;
  // One kernel's are read before the other's are written. Heads of 256 have no prompt kernel that splits.
  const int32_t of_decode = kMaxParts * partial_floats(chunks.queries * group, head_dim);
  const int32_t of_prompts = head_dim <= 128 ? kMaxPromptParts * prompt_part_floats(head_dim) : 0;
  at += sizeof(float) * std::max(of_decode, of_prompts);
  layout.bytes = at;
  return layout;
}

size_t native_attention_scratch_bytes(const KvLayerView& kv,
                                      int32_t num_q_heads,
                                      int32_t max_rows,
                                      int32_t decode_len) {
  return cuda::native_scratch_layout(
             kv.num_kv_heads, num_q_heads / kv.num_kv_heads, kv.head_dim_k, max_rows, decode_len)
      .bytes;
}

}  // namespace warprow
