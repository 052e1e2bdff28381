// SPDX-License-Identifier: Apache-2.0
// Products with experts' matrices: checks of the arguments, and which kernel runs.
#include "base/check.h"
#include "base/math.h"
#include "kernels/cuda/vector_access.cuh"
#include "kernels/experts/expert_gate.cuh"
#include "kernels/experts/expert_linear.h"
#include "kernels/experts/sm90_expert_gemm.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <algorithm>
#include <bit>

namespace warprow::cuda {
namespace {

// Tiles of 256 places, for which rows of x are laid out by place first.
template <PackedKind kKind>
void launch_wide(Stream& stream, const ExpertLinearArgs& args, ExpertGemmArgs gemm) {
  if (args.x_by_row) {
    WR_CHECK(args.gathered.shape[0] >= gemm.max_places && args.gathered.shape[1] == gemm.k &&
                 args.gathered.dtype == DType::kBF16 &&
                 rows_fit_vec(args.gathered.data, args.gathered.stride, 2),
             "no room for x by place");
    gather_places(stream, gemm, args.lists.first.data, args.gathered.data, args.gathered.stride);
    gemm.x = args.gathered.data;
    gemm.x_stride = args.gathered.stride;
    gemm.slots = nullptr;
  }
  sm90_wide_expert_gemm<kKind>(stream, gemm, args.epilogue);
}

template <PackedKind kKind, ScaleForm kScales = ScaleForm::kF16>
void launch_sm90(Stream& stream,
                 const ExpertLinearArgs& args,
                 const ExpertGemmArgs& gemm,
                 int32_t tile_places) {
  if (tile_places == 8) {
    if constexpr (kKind == PackedKind::kMxfp4) {
      return sm90_mxfp4_unit_gemm(stream, gemm, args.epilogue);
    } else if constexpr (has_quant_tiles(kKind)) {
      return sm90_unit_expert_gemm<kKind>(stream, gemm, args.epilogue);
    } else {
      return sm90_expert_gemm<kKind, kScales, 8>(stream, gemm, args.epilogue);
    }
  }
  if (tile_places == 32) {
    return sm90_expert_gemm<kKind, kScales, 32>(stream, gemm, args.epilogue);
  }
  if constexpr (kKind != PackedKind::kBF16) {
    if (tile_places == 64) {
      return sm90_expert_gemm<kKind, kScales, 64>(stream, gemm, args.epilogue);
    }
  }
  if constexpr (kKind == PackedKind::kMxfp4) {
    if (tile_places == 48) {
      return sm90_expert_gemm<kKind, kScales, 48>(stream, gemm, args.epilogue);
    }
    if (tile_places == 96) {
      return sm90_expert_gemm<kKind, kScales, 96>(stream, gemm, args.epilogue);
    }
  }
  if (tile_places == 128) {
    return sm90_expert_gemm<kKind, kScales, 128>(stream, gemm, args.epilogue);
  }
  if constexpr (has_quant_tiles(kKind)) {
    WR_CHECK(false, "quantised experts and tiles of {} places", tile_places);
  } else {
    launch_wide<kKind>(stream, args, gemm);
  }
}

}  // namespace

void expert_linear(Stream& stream, const ExpertLinearArgs& args) {
  const ExpertLists& lists = args.lists;
  const bool gates = args.epilogue == LinearEpilogue::kSwiGlu;
  const bool wide = args.w.kind == PackedKind::kF32;
  const DType type = wide ? DType::kF32 : DType::kBF16;
  const int64_t num_rows = args.x_by_row ? args.x.shape[0] : args.x.shape[0] / lists.num_chosen;
  const int64_t num_slots = num_rows * lists.num_chosen;
  WR_CHECK(gates || args.epilogue == LinearEpilogue::kStore);
  WR_CHECK(!args.gelu || args.gate_limit == 0.0F, "gelu with a limit");
  const bool mxfp4 = args.w.kind == PackedKind::kMxfp4;
  const bool tiles = has_quant_tiles(args.w.kind);
  const bool one_bf16 = args.w.scales == ScaleForm::kBF16 && !args.w.has_zero_points;
  WR_CHECK(wide || mxfp4 || tiles || args.w.kind == PackedKind::kBF16);
  const bool has_group =
      has_quant_group(args.w) && (args.w.kind != PackedKind::kF8 || args.w.group == kQuantTileCols);
  WR_CHECK(!tiles || (args.n % (gates ? 32 : 16) == 0 && has_group),
           "tiles of {} rows an expert, groups of {}",
           args.n,
           args.w.group);
  WR_CHECK(!tiles || has_quant_scales(args.w), "scales of kind {}", static_cast<int>(args.w.kind));
  WR_CHECK(!tiles || has_quant_codes(args.w), "zero point {}", args.w.zero_point);
  WR_CHECK(args.x.dtype == type && args.y.dtype == type,
           "x {}, y {}",
           dtype_name(args.x.dtype),
           dtype_name(args.y.dtype));
  WR_CHECK_EQ(args.w.n, lists.num_experts * args.n);
  WR_CHECK_EQ(args.x.shape[1], args.w.k);
  WR_CHECK_EQ(args.y.shape[1], gates ? args.n / 2 : args.n);
  WR_CHECK_GE(args.y.shape[0], num_slots);
  WR_CHECK(args.n % (gates ? 16 : 8) == 0 && args.w.k % 8 == 0, "{} x {}", args.n, args.w.k);
  WR_CHECK(rows_fit_vec(args.x.data, args.x.stride, dtype_bytes(type)) &&
               rows_fit_vec(args.y.data, args.y.stride, dtype_bytes(type)) &&
               rows_fit_vec(args.w.data, 0, 2),
           "rows are not 16-byte aligned");
  if (num_rows == 0) {
    return;
  }
  WR_CHECK_EQ(lists.matrices == PackedKind::kMxfp4, mxfp4);
  const int32_t width =
      expert_tile_places(num_rows, lists.num_chosen, lists.num_experts, lists.matrices);
  const ExpertGemmArgs gemm{
      .x = args.x.data,
      .x_stride = args.x.stride,
      .slots = args.x_by_row ? lists.slots.data : nullptr,
      .num_chosen = lists.num_chosen,
      .w = args.w.data,
      .bias = args.bias,
      .gate_limit = args.gelu ? kGeluGate : args.gate_limit,
      .y = args.y.data,
      .y_stride = args.y.stride,
      .tiles = lists.tiles.data,
      .max_tiles =
          static_cast<int32_t>(std::min<int64_t>(num_slots, lists.num_experts) + num_slots / width),
      .max_places = static_cast<int32_t>(num_slots),
      .num_experts = lists.num_experts,
      .n = args.n,
      .k = args.w.k,
      .tile_bytes = tiles ? quant_tile_bytes(args.w) : 0,
      .tile_pieces = tiles ? quant_tile_pieces(quant_tile_bytes(args.w)) : 0,
      .log2_group = std::countr_zero(static_cast<uint32_t>(args.w.group)),
      .scales = quant_scales(args.w),
      .codes = quant_codes(args.w),
      .has_zero_points = args.w.has_zero_points,
  };
  if (wide) {
    return plain_expert_gemm<float>(stream, gemm, args.epilogue);
  }
  if (stream.device().facts().compute_capability != 90) {
    WR_CHECK(!mxfp4 && !tiles, "quantised experts need a Hopper GPU");
    return plain_expert_gemm<Bf16>(stream, gemm, args.epilogue);
  }
  switch (args.w.kind) {
    case PackedKind::kMxfp4:
      return launch_sm90<PackedKind::kMxfp4>(stream, args, gemm, width);
    case PackedKind::kF8:
      return one_bf16 ? launch_sm90<PackedKind::kF8, ScaleForm::kBF16>(stream, args, gemm, width)
                      : launch_sm90<PackedKind::kF8>(stream, args, gemm, width);
    case PackedKind::kQ4:
      return one_bf16 ? launch_sm90<PackedKind::kQ4, ScaleForm::kBF16>(stream, args, gemm, width)
                      : launch_sm90<PackedKind::kQ4>(stream, args, gemm, width);
    case PackedKind::kQ6:
      WR_CHECK(one_bf16, "experts of six bits have bf16 scales and no zero points of groups");
      return launch_sm90<PackedKind::kQ6, ScaleForm::kBF16>(stream, args, gemm, width);
    case PackedKind::kQ8:
      return one_bf16 ? launch_sm90<PackedKind::kQ8, ScaleForm::kBF16>(stream, args, gemm, width)
                      : launch_sm90<PackedKind::kQ8>(stream, args, gemm, width);
    case PackedKind::kTable:
      return launch_sm90<PackedKind::kTable>(stream, args, gemm, width);
    default:
      return launch_sm90<PackedKind::kBF16>(stream, args, gemm, width);
  }
}

}  // namespace warprow::cuda
