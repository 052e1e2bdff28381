// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/cuda_stream.h"
#include "kernels/attention/flashinfer/params.h"

// What FlashInfer's cutlass_utils.cuh includes, without CUTLASS's test tools, which double the compile time. The guard keeps
// the original out.
#define FLASHINFER_CUTLASS_UTILS_CUH_
#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/numeric_types.h>

// A patched copy (cmake/patches/flashinfer). Its include guard keeps the original out.
#include <epilogue.cuh>
#include <flashinfer/attention/hopper/default_params.cuh>
#include <flashinfer/attention/hopper/prefill_sm90.cuh>
#include <flashinfer/attention/hopper/variants.cuh>
#include <flashinfer/attention/mask.cuh>

namespace warprow::cuda {

// Formula: causal attention of the extend rows, kernels/attention/paged_attention.h.
// Shapes: FlashInferArgs, ExtendWork.
// Mapping: one CTA per SM loops over its list of (query tile, head) items; two or three consumer warpgroups
//   (wgmma) and one producer warpgroup, which loads the pages.
// Bytes moved: each tile reads its visible keys and values, once per query head.
// Numerics: bf16 products with float32 sums, online softmax from the last key tile to the first.
// Preconditions: sm_90a. Every item of the work is in [0, num_toks).
// Origin: FlashInfer 0.7.2, attention/hopper, after FlashAttention-3.
template <int kHeadDim>
void flashinfer_extend(Stream& stream, const FlashInferArgs& args, const ExtendWork& work) {
  using Element = cutlass::bfloat16_t;
  using Params = flashinfer::BatchPrefillPagedParams<Element, Element, Element, int32_t>;
  const KvLayerView& kv = args.kv;
  WR_CHECK_EQ(kv.head_dim_k, kHeadDim);
  WR_CHECK_EQ(work.tile_q, extend_tile_q(kHeadDim));
  Params p{};
  p.q_ptr = static_cast<Element*>(const_cast<void*>(args.q.data));
  p.k_ptr = reinterpret_cast<Element*>(kv.k);
  p.v_ptr = reinterpret_cast<Element*>(kv.v);
  p.o_ptr = static_cast<Element*>(args.out.data);
  p.q_stride_n = args.q.stride;
  p.o_stride_n = args.out.stride;
  p.q_stride_h = p.o_stride_h = kHeadDim;
  p.k_stride_n = p.v_stride_n = kv.token_stride;
  p.k_stride_h = p.v_stride_h = kv.head_stride;
  p.k_page_stride = p.v_page_stride = kv.block_stride;
  p.nnz_qo = args.q.shape[0];
  p.num_qo_heads = args.num_q_heads;
  p.num_kv_heads = kv.num_kv_heads;
  p.group_size = args.num_q_heads / kv.num_kv_heads;
  p.page_size = kv.block_size;
  p.window_left = -1;
  p.causal = true;
  p.work_indptr = work.work_begin;
  p.qo_tile_indices = work.item(ExtendWork::kTile);
  p.head_indices = work.item(ExtendWork::kHead);
  p.qo_indptr = work.item(ExtendWork::kQueryStart);
  p.kv_indptr = work.item(ExtendWork::kTableStart);
  p.qo_lens = work.item(ExtendWork::kQueryLen);
  p.kv_lens = work.item(ExtendWork::kKvLen);
  p.batch_indices = work.item(ExtendWork::kBatchIdx);
  p.kv_indices = const_cast<int32_t*>(args.block_table.cells);
  p.additional_params.sm_scale = args.scale;
  CudaStream& on = as_cuda(stream);
  WR_CUDA((flashinfer::BatchPrefillWithPagedKVCacheDispatched<kHeadDim,
                                                              kHeadDim,
                                                              flashinfer::MaskMode::kCausal,
                                                              /*LEFT_SLIDING_WINDOW=*/false,
                                                              /*SAME_SCHEDULE_FOR_ALL_HEADS=*/false,
                                                              flashinfer::DefaultAttention<false>,
                                                              Params>(
      p, /*enable_pdl=*/false, on.handle())));
  on.note_launch("flashinfer_extend");
}

template void flashinfer_extend<WR_HEAD_DIM>(Stream& stream,
                                             const FlashInferArgs& args,
                                             const ExtendWork& work);

}  // namespace warprow::cuda
