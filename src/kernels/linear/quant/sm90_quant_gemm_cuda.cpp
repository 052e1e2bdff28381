// SPDX-License-Identifier: Apache-2.0
// The GEMM with quantised weights: checks of its arguments, and which instance runs.
#include "kernels/linear/quant/sm90_quant_gemm.h"

#include "base/check.h"
#include "kernels/linear/quant/quant_tiles.h"

#include <bit>

namespace warprow::cuda {
namespace {

template <PackedKind kKind>
void launch_cols(Stream& stream,
                 const Sm90GemmArgs& args,
                 const PackedWeight& weight,
                 const Sm90QuantPlan& plan) {
  switch (plan.cols) {
    case 8:
      return launch_sm90_quant<kKind, 8, 1>(stream, args, weight, plan);
    case 32:
      return launch_sm90_quant<kKind, 32, 1>(stream, args, weight, plan);
    case 64:
      return launch_sm90_quant<kKind, 64, 1>(stream, args, weight, plan);
    default:
      return plan.groups == 1 ? launch_sm90_quant<kKind, 128, 1>(stream, args, weight, plan)
                              : launch_sm90_quant<kKind, 128, 3>(stream, args, weight, plan);
  }
}

}  // namespace

void sm90_quant_gemm(Stream& stream,
                     const Sm90GemmArgs& args,
                     const PackedWeight& weight,
                     const Sm90QuantPlan& plan) {
  WR_CHECK_GE(args.m, 1);
  WR_CHECK(args.n == weight.n && args.k == weight.k, "{} x {}", weight.n, weight.k);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  WR_CHECK(args.next_weight == nullptr || sm90_gemm_leaves_norm(args.epilogue, args.n));
  WR_CHECK(args.epilogue != LinearEpilogue::kSwiGlu || args.n % (2 * kQuantTileRows) == 0,
           "n {}",
           args.n);
  WR_CHECK(plan.groups == 1 || (plan.groups == 3 && plan.cols == 128), "{} groups", plan.groups);
  WR_CHECK(std::has_single_bit(static_cast<uint32_t>(plan.split)) &&
           plan.split <= kMaxSm90GemmCluster && plan.stages >= 2 &&
           plan.stages <= kMaxSm90GemmStages);
  WR_CHECK_LE(sm90_quant_shared_bytes(plan, weight), static_cast<size_t>(kSm90GemmSharedBytes));
  WR_CHECK(has_quant_scales(weight), "scales of kind {}", static_cast<int>(weight.kind));
  WR_CHECK(has_quant_group(weight), "groups of {}", weight.group);
  WR_CHECK(has_quant_codes(weight), "zero point {}", weight.zero_point);
  switch (weight.kind) {
    case PackedKind::kF8:
      WR_CHECK(weight.group == kQuantTileCols && !weight.has_zero_points, "{}", weight.group);
      return launch_cols<PackedKind::kF8>(stream, args, weight, plan);
    case PackedKind::kQ4:
      return launch_cols<PackedKind::kQ4>(stream, args, weight, plan);
    case PackedKind::kQ6:
      return launch_cols<PackedKind::kQ6>(stream, args, weight, plan);
    case PackedKind::kTable:
      return launch_cols<PackedKind::kTable>(stream, args, weight, plan);
    case PackedKind::kQ8:
      return launch_cols<PackedKind::kQ8>(stream, args, weight, plan);
    default:
      WR_CHECK(false, "kind {}", static_cast<int>(weight.kind));
  }
}

}  // namespace warprow::cuda
