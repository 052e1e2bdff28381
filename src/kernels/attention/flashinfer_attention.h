// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/paged_attention.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The largest step, and the device that it runs on. Of kv only the shapes are read.
struct FlashInferLimits {
  KvLayerView kv;
  int32_t num_q_heads = 0;
  int32_t max_rows = 0;
  int32_t max_toks = 0;
  int32_t max_blocks = 0;       // of a row
  int64_t num_table_cells = 0;  // BlockTableView::num_cells
  int32_t num_sms = 0;
  bool fa2 = false;  // FlashInfer's kernels for every GPU, with windows and any group
};

// Why these shapes cannot be served; empty when they can.
const char* flashinfer_unmet_need(const FlashInferLimits& limits);

// Bytes of PagedAttentionArgs::scratch; it holds a step's plan as well.
size_t flashinfer_scratch_bytes(const FlashInferLimits& limits);

namespace cuda {

// paged_attention through kernels of FlashInfer, in two halves: the layers of a step share a plan.
struct FlashInferArgs : PagedAttentionArgs {
  FlashInferLimits limits;  // those that the scratch was made for
};

// Once per step, from the lengths on the device. q gives the (padded) number of tokens only, kv the
// shapes.
void flashinfer_plan(Stream& stream, const FlashInferArgs& args);
// Per layer, with the arguments of the plan. Grids depend on padded counts and num_decode_rows
// alone, so both calls can be replayed with other lengths.
//
// Preconditions beyond those of paged_attention: causal, without sinks, soft cap and lse; q is the
// front of rows of a QKV matrix, num_q_heads + 2 * num_kv_heads heads wide; out's rows are
// contiguous; the cache holds finite values wherever a block's tail lies; no window unless
// limits.fa2, and then the plan's.
void flashinfer_forward(Stream& stream, const FlashInferArgs& args);

}  // namespace cuda
}  // namespace warprow
