// SPDX-License-Identifier: Apache-2.0
#include "base/check.h"
#include "kernels/attention/flashinfer/params.h"

namespace warprow::cuda {
namespace {

FlashInferScratch scratch_of(const FlashInferArgs& args) {
  FlashInferScratch scratch;
  const size_t bytes = flashinfer_scratch_layout(args.limits, args.scratch.data, &scratch);
  WR_CHECK_GE(static_cast<size_t>(args.scratch.shape[0]), bytes);
  return scratch;
}

int32_t num_rows(const FlashInferArgs& args) {
  return static_cast<int32_t>(args.seq_lens.shape[0]);
}

void check_batch(const FlashInferArgs& args) {
  const FlashInferLimits& limits = args.limits;
  WR_CHECK(num_rows(args) <= limits.max_rows && args.q.shape[0] <= limits.max_toks,
           "{} rows with {} tokens, planned for {} and {}",
           num_rows(args),
           args.q.shape[0],
           limits.max_rows,
           limits.max_toks);
  WR_CHECK(args.num_decode_rows >= 0 && args.num_decode_rows <= num_rows(args),
           "{} decode rows of {}",
           args.num_decode_rows,
           num_rows(args));
  WR_CHECK(args.num_decode_rows == 0 || !args.batch_invariant,
           "decode rows are split by the batch");
  WR_CHECK_LE(args.block_table.num_cells, limits.num_table_cells);
  WR_CHECK_EQ(args.kv.token_stride, limits.kv.token_stride);
  WR_CHECK_EQ(args.kv.block_size, limits.kv.block_size);
  WR_CHECK_EQ(args.num_q_heads, limits.num_q_heads);
}

Fa2Part decode_part(const FlashInferArgs& args) {
  return fa2_decode_part(args.limits, args.num_decode_rows);
}
Fa2Part extend_part(const FlashInferArgs& args) {
  return fa2_extend_part(args.limits,
                         args.num_decode_rows,
                         num_rows(args),
                         static_cast<int32_t>(args.q.shape[0]),
                         args.batch_invariant);
}

void plan_fa2(Stream& stream,
              const FlashInferArgs& args,
              const AttentionPlanParams& params,
              const FlashInferScratch& scratch) {
  if (args.num_decode_rows > 0) {
    plan_fa2_work(stream, params, decode_part(args), scratch.fa2_decode);
  }
  if (args.num_decode_rows < num_rows(args)) {
    plan_fa2_work(stream, params, extend_part(args), scratch.fa2_extend);
  }
}

void forward_fa2(Stream& stream, const FlashInferArgs& args, const FlashInferScratch& scratch) {
  const auto forward = args.kv.head_dim_k == 64 ? flashinfer_fa2<64> : flashinfer_fa2<128>;
  if (args.num_decode_rows > 0) {
    forward(stream, args, decode_part(args), scratch.fa2_decode, scratch.fa2_partials);
  }
  if (args.num_decode_rows < num_rows(args)) {
    forward(stream, args, extend_part(args), scratch.fa2_extend, scratch.fa2_partials);
  }
}

}  // namespace

void flashinfer_plan(Stream& stream, const FlashInferArgs& args) {
  check_batch(args);
  const FlashInferScratch scratch = scratch_of(args);
  AttentionPlanParams params = {};
  params.block_table = args.block_table;
  params.idx_mapping = args.idx_mapping.data;
  params.query_start_loc = args.query_start_loc.data;
  params.seq_lens = args.seq_lens.data;
  params.block_stride = args.kv.block_stride;
  params.block_size = args.kv.block_size;
  params.num_rows = num_rows(args);
  params.num_decode_rows = args.num_decode_rows;
  params.num_heads = args.num_q_heads;
  params.num_kv_heads = args.kv.num_kv_heads;
  if (args.limits.fa2) {
    params.window = args.window;
    params.extra_items = fa2_extra_items(args.limits);
    plan_fa2(stream, args, params, scratch);
    return;
  }
  if (args.num_decode_rows > 0) {
    WR_CHECK_EQ(args.kv.block_stride % scratch.tables.page_stride, 0);
    plan_decode_tables(stream, params, scratch.tables);
  }
  if (args.num_decode_rows < params.num_rows) {
    plan_extend_work(stream, params, scratch.work);
  }
}

void flashinfer_forward(Stream& stream, const FlashInferArgs& args) {
  check_batch(args);
  const KvLayerView& kv = args.kv;
  WR_CHECK(
      args.q.dtype == DType::kBF16 && args.out.dtype == DType::kBF16 && kv.dtype == DType::kBF16,
      "queries, output and cache are bfloat16");
  WR_CHECK(args.causal && args.sinks.empty() && args.soft_cap == 0.0F && args.lse.empty(),
           "causal attention without sinks, soft cap and lse");
  WR_CHECK(args.window == 0 || args.limits.fa2, "a window of {}", args.window);
  WR_CHECK_EQ(args.q.stride, int64_t{args.num_q_heads + 2 * kv.num_kv_heads} * kv.head_dim_k);
  WR_CHECK_EQ(args.out.stride, int64_t{args.num_q_heads} * kv.head_dim_v);
  const FlashInferScratch scratch = scratch_of(args);
  if (args.limits.fa2) {
    forward_fa2(stream, args, scratch);
    return;
  }
  if (args.num_decode_rows > 0) {
    xqa_decode(stream,
               args,
               scratch.tables,
               scratch.partials,
               xqa_splits(args.num_decode_rows, args.limits));
  }
  if (args.num_decode_rows < num_rows(args)) {
    (kv.head_dim_k == 64 ? flashinfer_extend<64>
                         : flashinfer_extend<128>)(stream, args, scratch.work);
  }
}

}  // namespace warprow::cuda
