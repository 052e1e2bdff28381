// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "attention/attention_backend.h"
#include "kernels/attention/paged_attention.h"

namespace warprow {

// Sets the kernel arguments that depend on the step's batch, including padding rows.
inline void set_batch(PagedAttentionArgs& args, const AttentionMetadata& metadata) {
  const AttentionBatch& batch = metadata.batch;
  args.block_table = metadata.block_table;
  args.idx_mapping = make_view(batch.idx_mapping.data, batch.num_rows);
  args.query_start_loc = make_view(batch.query_start_loc.data, batch.num_rows + 1);
  args.seq_lens = make_view(batch.seq_lens.data, batch.num_rows);
}

// Sets the kernel arguments that depend on one layer's call.
inline void set_call(PagedAttentionArgs& args, const AttentionCall& call) {
  args.q = call.q;
  args.out = call.out;
  args.kv = call.kv;
  if (call.params.sinks != nullptr) {
    args.sinks = make_view(call.params.sinks, call.num_heads);
  }
  args.num_q_heads = call.num_heads;
  args.window = call.params.window;
  args.scale = call.params.scale;
  args.soft_cap = call.params.soft_cap;
  args.causal = call.params.causal;
}

}  // namespace warprow
