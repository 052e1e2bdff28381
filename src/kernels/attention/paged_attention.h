// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/attention/block_table_view.h"
#include "kernels/attention/kv_view.h"
#include "kernels/op.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Attention of a step's queries over the paged KV cache: prefill, decode and mixed batches in one
// call.
//
// Formula: query i of batch row r stands at position p = seq_lens[r] - (its row's query count) + i
// and sees keys
//   [max(0, p - window + 1), p] (not causal: all seq_lens[r] keys). s_j = scale * q . k_j, with a
//   soft cap c * tanh(s_j / c); out = sum_j e^(s_j) v_j / (sum_j e^(s_j) + e^(sink of the head));
//   lse = log of the denominator.
// Shapes: q [T, Hq * head_dim_k] (row stride free: a window of the QKV buffer); out [T, Hq *
// head_dim_v]; block_table
//   of kernel block ids by row; idx_mapping [R] batch position -> row of block_table,
//   negative for padding; query_start_loc [R + 1]; seq_lens [R], this step's tokens included; sinks
//   [Hq] or empty; lse [T, Hq] or empty.
// Mapping: CPU: an item is a tile of up to 32 / group queries of one row, for one KV head; the
// group's heads share
//   each loaded tile of 64 keys; items in parallel. A row with one tile and more than an eighth of a
//   thread's share is several items, one for each part of its keys; the last to end merges them.
//   Rows of padding, or without queries, cost nothing.
// Bytes moved: per item its visible keys and values once; per query head_dim * Hq * 4 read and
//   written.
// Numerics: float32 sums, online softmax over tiles of 64 keys aligned to absolute positions, in
//   parts that begin at fixed positions (paged_attention_loops.h). With AVX-512 BF16, over a bf16
//   cache and heads of multiples of 32, queries and weights are rounded to bf16. The result for a
//   query and head is a function of that query and its keys: bit-equal for any batch, chunk, block
//   size and thread count.
// Preconditions: Hq is a multiple of the KV heads; cache is f32 or bf16 and holds this step's keys
// and values; scratch
//   has paged_attention_scratch_bytes. out of padding tokens is left as it was.
// Origin: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Kwon et al.,
// "PagedAttention",
//   2023; sinks as in gpt-oss: a logit without a value.
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
  // CUDA: the first rows, known to have at most decode_len tokens each, num_decode_toks together (padded). They take
  // a kernel that cuts long rows up according to the whole batch; batch_invariant forbids it.
  int32_t num_decode_rows = 0;
  int32_t num_decode_toks = 0;
  int32_t decode_len = 1;
  bool batch_invariant = false;
};

WR_OP(paged_attention, PagedAttentionArgs);

// Scratch for calls of at most max_rows batch rows on a pool of num_workers. Of kv only the shapes
// are read. It grows with neither context nor tokens; steps and layers on one stream can share it.
size_t paged_attention_scratch_bytes(const KvLayerView& kv,
                                     int32_t num_q_heads,
                                     int32_t max_rows,
                                     int32_t num_workers);

}  // namespace warprow
