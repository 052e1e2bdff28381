// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/attention/flashinfer/params.h"

#include <cstdint>
#include <limits>

#include <flashinfer/attention/default_prefill_params.cuh>
#include <flashinfer/attention/mask.cuh>
#include <flashinfer/attention/prefill.cuh>
#include <flashinfer/attention/variants.cuh>

namespace warprow::cuda {

// Formula: causal attention of a part of the batch's rows with an optional sliding window,
//   kernels/attention/paged_attention.h.
// Shapes: FlashInferArgs, Fa2Part, Fa2Work.
// Mapping: a CTA per work item and KV head; a tile has tile_q (query, head) pairs, with the heads of the
//   group side by side. In tiles of 16 the four warps split the keys, in larger ones the pairs. A second
//   launch merges a split part.
// Bytes moved: each tile reads its visible keys and values once per KV head.
// Numerics: bf16 products with float32 sums, online softmax; the partial outputs of a split part are bf16.
// Preconditions: sm_80 or later; the work was planned for this part.
// Origin: FlashInfer 0.7.2, attention/prefill.cuh, after FlashAttention-2.
template <int kHeadDim>
void flashinfer_fa2(Stream& stream,
                    const FlashInferArgs& args,
                    const Fa2Part& part,
                    const Fa2Work& work,
                    const Fa2Partials& partials) {
  using Element = __nv_bfloat16;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  // With window_left = -1 the sliding-window variant masks no more than the plain one.
  using Variant = flashinfer::DefaultAttention</*use_custom_mask=*/false,
                                               /*use_sliding_window=*/true,
                                               /*use_logits_soft_cap=*/false,
                                               /*use_alibi=*/false>;
  const KvLayerView& kv = args.kv;
  WR_CHECK_EQ(kv.head_dim_k, kHeadDim);
  WR_CHECK_LE(kv.block_stride, int64_t{std::numeric_limits<uint32_t>::max()});
  const int64_t strides[] = {kv.block_stride, kv.head_stride, kv.token_stride};
  const flashinfer::paged_kv_t<Element, int32_t> cache(
      static_cast<uint32_t>(kv.num_kv_heads),
      static_cast<uint32_t>(kv.block_size),
      kHeadDim,
      static_cast<uint32_t>(part.num_rows),
      flashinfer::QKVLayout::kHND,  // only sets the order of the strides
      reinterpret_cast<Element*>(kv.k),
      reinterpret_cast<Element*>(kv.v),
      strides,
      const_cast<int32_t*>(args.block_table.cells),
      work.table_begin,
      work.last_page_len);
  int32_t* const query_start = const_cast<int32_t*>(args.query_start_loc.data) + part.first_row;
  auto* const out = static_cast<Element*>(args.out.data);
  Params p(static_cast<Element*>(const_cast<void*>(args.q.data)),
           cache,
           /*maybe_custom_mask=*/nullptr,
           query_start,
           /*maybe_mask_indptr=*/nullptr,
           /*maybe_q_rope_offset=*/nullptr,
           // The merge counts tokens from the part's first, the kernel in the batch.
           part.split ? out + int64_t{part.first_tok} * args.out.stride : out,
           /*lse=*/nullptr,
           /*maybe_alibi_slopes=*/nullptr,
           static_cast<uint32_t>(args.num_q_heads),
           static_cast<int32_t>(args.q.stride),
           kHeadDim,
           args.window - 1,
           /*logits_soft_cap=*/0.0F,
           args.scale,
           /*rope_scale=*/1.0F,
           /*rope_theta=*/1.0F);
  p.request_indices = work.row;
  p.qo_tile_indices = work.tile;
  p.kv_tile_indices = work.chunk;
  p.block_valid_mask = work.valid;
  p.o_indptr = part.split ? work.partial_begin : query_start;
  p.merge_indptr = work.merge_begin;
  p.kv_chunk_size_ptr = work.chunk_size;
  p.total_num_rows = work.num_toks;
  p.max_total_num_rows = static_cast<uint32_t>(part.num_toks);
  p.padded_batch_size = static_cast<uint32_t>(part.num_items);

  auto* const tmp_out = part.split ? reinterpret_cast<Element*>(partials.out) : nullptr;
  CudaStream& on = as_cuda(stream);
  const auto run = [&]<uint32_t kTileQ>() {
    using namespace flashinfer;
    WR_CUDA((BatchPrefillWithPagedKVCacheDispatched</*SAME_KV_STRIDES=*/true,
                                                    kTileQ,
                                                    kHeadDim,
                                                    kHeadDim,
                                                    PosEncodingMode::kNone,
                                                    /*USE_FP16_QK_REDUCTION=*/false,
                                                    MaskMode::kCausal,
                                                    Variant,
                                                    Params>(
        p, tmp_out, partials.lse, /*enable_pdl=*/false, on.handle())));
  };
  switch (part.tile_q) {
    case 16:
      run.template operator()<16>();
      break;
    case 64:
      run.template operator()<64>();
      break;
    default:
      WR_CHECK_EQ(part.tile_q, 128);
      run.template operator()<128>();
  }
  on.note_launch("flashinfer_fa2");
}

template void flashinfer_fa2<WR_HEAD_DIM>(Stream& stream,
                                          const FlashInferArgs& args,
                                          const Fa2Part& part,
                                          const Fa2Work& work,
                                          const Fa2Partials& partials);

}  // namespace warprow::cuda
