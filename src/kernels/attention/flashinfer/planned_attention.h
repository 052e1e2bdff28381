// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/paged_attention.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// The sizes of the largest step, and the device that runs it. Only the shapes of kv are read.
struct FlashInferLimits {
  KvLayerView kv;
  int32_t num_q_heads = 0;
  int32_t max_rows = 0;
  int32_t max_toks = 0;
  int32_t max_blocks = 0;       // of a row
  int64_t num_table_cells = 0;  // BlockTableView::num_cells
  int32_t num_sms = 0;
  bool fa2 = false;  // use FlashInfer's FA2 kernels, for every GPU, with windows and any group size
};

// Says why these shapes are not supported; empty if they are.
const char* flashinfer_unmet_need(const FlashInferLimits& limits);

// Bytes of PagedAttentionArgs::scratch; it holds a step's plan as well.
size_t flashinfer_scratch_bytes(const FlashInferLimits& limits);

namespace cuda {

// paged_attention with kernels of FlashInfer, in two calls: the layers of a step share a plan.
struct FlashInferArgs : PagedAttentionArgs {
  FlashInferLimits limits;  // the limits that the scratch was sized for
};

// Once per step: makes the plan from the lengths on the device. Of q, only the (padded) number of tokens is
// read; of kv, only the shapes.
void flashinfer_plan(Stream& stream, const FlashInferArgs& args);
// Once per layer, with the arguments of the plan. Grids depend only on padded counts and num_decode_rows, so
// both calls can be captured and replayed with other lengths.
//
// Preconditions beyond those of paged_attention: causal, without sinks, soft cap and lse; q is the first
//   columns of a QKV matrix whose rows are num_q_heads + 2 * num_kv_heads heads wide; out's rows are
//   contiguous; cache entries past a row's length, in its last block, are finite; no window unless
//   limits.fa2, and then the plan's window.
void flashinfer_forward(Stream& stream, const FlashInferArgs& args);

}  // namespace cuda
}  // namespace warprow
