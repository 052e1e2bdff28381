// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/op.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Attention of a step's queries over the paged KV cache. One call takes prefill, decode and mixed batches.
//
// Formula: query i of batch row r has position p = seq_lens[r] - (query count of row r) + i. It sees keys
//   [max(0, p - window + 1), p]; if not causal, all seq_lens[r] keys, or those at a distance below window from p.
//   s_j = scale * q . k_j, with a soft cap c * tanh(s_j / c); out = sum_j e^(s_j) v_j / (sum_j e^(s_j) + e^(sink of the
//   head)); lse = log of the denominator.
// Shapes: q [T, Hq * head_dim_k] (any row stride: columns of the QKV buffer); out [T, Hq * head_dim_v];
//   block_table: kernel block ids by row; idx_mapping [R]: batch position -> row of block_table, negative for
//   padding; query_start_loc [R + 1]; seq_lens [R], including this step's tokens; sinks [Hq] or empty; lse
//   [T, Hq] or empty.
// Mapping: CPU: an item is a tile of up to 32 / group queries of one row, for one KV head. The heads of the
//   group share each loaded tile of 64 keys. Items run in parallel. A row with one tile whose keys exceed an
//   eighth of a thread's share is split into several items, one per part of its keys; the thread that
//   finishes the last part merges them. Padding rows and rows without queries have no items.
// Bytes moved: per item its visible keys and values once; per query head_dim * Hq * 4 read and written.
// Numerics: float32 sums, online softmax over tiles of 64 keys aligned to absolute positions, in parts that
//   begin at fixed positions (cpu/paged_attention_loops.h). With AVX-512 BF16 or AMX, a bf16 cache and head
//   sizes that are multiples of 32, queries and softmax weights are rounded to bf16. The result for a query and head is
//   a function of that query and its keys: bit-equal for any batch, chunk, block size and thread count.
// Preconditions: Hq is a multiple of the number of KV heads; the cache is f32, bf16 or of 8-bit floats with scales
//   (a key or value is the element times its scale), and it holds this step's keys and values; scratch has
//   paged_attention_scratch_bytes. Output rows of padding tokens are not written. CUDA: q, out and cache are all bf16, or
//   all float32 (plain/plain_attention.h); with a cache of 8-bit floats q and out are bf16 (native/operands.cuh).
// Origin: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Kwon et al.,
//   "PagedAttention", 2023; sinks as in gpt-oss: a logit without a value.
struct PagedAttentionArgs {
  ConstActView q;
  ActView out;
  KvLayerView kv;
  BlockTableView block_table;
  View<const int32_t, 1> idx_mapping;
  View<const int32_t, 1> query_start_loc;
  View<const int32_t, 1> seq_lens;
  View<const float, 1> sinks;
  View<float, 2> lse;
  View<std::byte, 1> scratch;
  int32_t num_q_heads = 0;
  int32_t window = 0;  // 0: none
  float scale = 1.0F;
  float soft_cap = 0.0F;  // 0: none
  bool causal = true;
  // CUDA: the first num_decode_rows rows have at most decode_len tokens each and num_decode_toks together
  // (padded). A decode kernel takes them. It splits long rows according to the lengths of the whole batch; with
  // batch_invariant it splits only at the borders of parts (native/parts.h; on Hopper; on other GPUs the kernel for
  // prompts takes all rows).
  int32_t num_decode_rows = 0;
  int32_t num_decode_toks = 0;
  int32_t decode_len = 1;
  // CUDA: no other row has more keys than this; 0: not known. On Hopper prompts of few queries and many keys are split by parts.
  int32_t most_prompt_keys = 0;
  bool batch_invariant = false;
};

WR_OP(paged_attention, PagedAttentionArgs);

// Scratch bytes for calls of at most max_rows batch rows on a pool of num_workers. Only the shapes of kv are
// read. The size depends on neither context length nor token count. Steps and layers on one stream can share
// the scratch.
size_t paged_attention_scratch_bytes(const KvLayerView& kv,
                                     int32_t num_q_heads,
                                     int32_t max_rows,
                                     int32_t num_workers);

}  // namespace warprow
