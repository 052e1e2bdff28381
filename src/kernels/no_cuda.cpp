// SPDX-License-Identifier: Apache-2.0
// Stubs of the CUDA side of every operation, for a build without CUDA. There is one line per op, so this is
// also the list of operations. Such a build cannot create a CUDA device, so none of the stubs is ever called.
#include "base/check.h"
#include "kernels/activation/act_and_mul.h"
#include "kernels/activation/gelu.h"
#include "kernels/activation/sigmoid_gate.h"
#include "kernels/activation/sigmoid_mul.h"
#include "kernels/add/add_rows.h"
#include "kernels/attention/flashinfer/planned_attention.h"
#include "kernels/attention/native/scheduled_attention.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/attention/plain/plain_attention.h"
#include "kernels/cast/cast_rows.h"
#include "kernels/delta/gated_delta.h"
#include "kernels/embedding/embedding.h"
#include "kernels/embedding/place_embedding.h"
#include "kernels/experts/combine_experts.h"
#include "kernels/experts/expert_linear.h"
#include "kernels/experts/fill_mxfp4.h"
#include "kernels/experts/route_experts.h"
#include "kernels/gather/gather_rows.h"
#include "kernels/heads/resize_heads.h"
#include "kernels/kv_scales/kv_scales.h"
#include "kernels/linear/linear.h"
#include "kernels/linear/quant/fill_quant.h"
#include "kernels/logits/cap_logits.h"
#include "kernels/low_rank/low_rank.h"
#include "kernels/norm/layer_norm.h"
#include "kernels/norm/rms_norm.h"
#include "kernels/op.h"
#include "kernels/pool/mean_rows.h"
#include "kernels/random/fill_random.h"
#include "kernels/rope/rope_kv_write.h"
#include "kernels/rope/rope_table.h"
#include "kernels/sample/draw_drafts.h"
#include "kernels/sample/grammar_mask.h"
#include "kernels/sample/sample.h"
#include "kernels/scale/scale_rows.h"

namespace warprow::cuda {

#define WR_NO_CUDA(name, Args)                          \
  void name(Stream& /*stream*/, const Args& /*args*/) { \
    WR_CHECK(false, "{}: built without CUDA", #name);   \
  }

WR_NO_CUDA(add_rows, AddRowsArgs)
WR_NO_CUDA(attention_forward, ScheduledAttentionArgs)
WR_NO_CUDA(attention_schedule, ScheduledAttentionArgs)
WR_NO_CUDA(cap_logits, CapLogitsArgs)
WR_NO_CUDA(cast_rows, CastRowsArgs)
WR_NO_CUDA(combine_experts, CombineExpertsArgs)
WR_NO_CUDA(draw_drafts, DrawDraftsArgs)
WR_NO_CUDA(embedding, EmbeddingArgs)
WR_NO_CUDA(expert_linear, ExpertLinearArgs)
WR_NO_CUDA(fill_mxfp4, FillMxfp4Args)
WR_NO_CUDA(fill_quant, FillQuantArgs)
WR_NO_CUDA(fill_random, FillRandomArgs)
WR_NO_CUDA(flashinfer_forward, FlashInferArgs)
WR_NO_CUDA(flashinfer_plan, FlashInferArgs)
WR_NO_CUDA(gated_delta, GatedDeltaArgs)
WR_NO_CUDA(gather_rows, GatherRowsArgs)
WR_NO_CUDA(gelu, GeluArgs)
WR_NO_CUDA(gelu_and_mul, GeluAndMulArgs)
WR_NO_CUDA(grammar_mask, GrammarMaskArgs)
WR_NO_CUDA(group_by_bank, GroupByBankArgs)
WR_NO_CUDA(kv_scales, KvScalesArgs)
WR_NO_CUDA(layer_norm, LayerNormArgs)
WR_NO_CUDA(linear, LinearArgs)
WR_NO_CUDA(low_rank_expand, LowRankExpandArgs)
WR_NO_CUDA(low_rank_shrink, LowRankShrinkArgs)
WR_NO_CUDA(mean_rows, MeanRowsArgs)
WR_NO_CUDA(paged_attention, PagedAttentionArgs)
WR_NO_CUDA(place_embedding, PlaceEmbeddingArgs)
WR_NO_CUDA(plain_attention, PagedAttentionArgs)
WR_NO_CUDA(resize_heads, ResizeHeadsArgs)
WR_NO_CUDA(rms_norm, RmsNormArgs)
WR_NO_CUDA(rope_kv_write, RopeKvWriteArgs)
WR_NO_CUDA(rope_table, RopeTableArgs)
WR_NO_CUDA(route_experts, RouteExpertsArgs)
WR_NO_CUDA(sample, SampleArgs)
WR_NO_CUDA(scale_rows, ScaleRowsArgs)
WR_NO_CUDA(sigmoid_gate, SigmoidGateArgs)
WR_NO_CUDA(sigmoid_mul, SigmoidMulArgs)
WR_NO_CUDA(silu_and_mul, SiluAndMulArgs)

bool attention_takes_rope(const DeviceFacts& /*device*/,
                          const ScheduledAttentionArgs& /*args*/,
                          const RopeKvWriteArgs& /*rope*/) {
  return false;
}

void prepare_linear(const DeviceFacts& /*device*/,
                    std::span<const LinearShape> /*shapes*/,
                    int64_t /*max_toks*/,
                    bool /*tune*/) {
  WR_CHECK(false, "prepare_linear: built without CUDA");
}

}  // namespace warprow::cuda
