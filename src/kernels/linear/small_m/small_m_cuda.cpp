// SPDX-License-Identifier: Apache-2.0
// The small-M GEMMs: checks of their arguments, and which instance runs.
#include "base/check.h"
#include "device/device.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"
#include "kernels/linear/small_m/sm90_maxima.h"

#include <bit>

namespace warprow::cuda {
namespace {

template <int kTileRows>
void launch_groups(Stream& stream, const Sm80GemmArgs& args, const Sm80GemmPlan& plan) {
  switch (plan.row_groups) {
    case 1:
      return launch_sm80_gemm<kTileRows, 1>(stream, args, plan);
    case 2:
      return launch_sm80_gemm<kTileRows, 2>(stream, args, plan);
    default:
      return launch_sm80_gemm<kTileRows, 4>(stream, args, plan);
  }
}

}  // namespace

void sm80_bf16_gemm_small_m(Stream& stream, const Sm80GemmArgs& args) {
  sm80_bf16_gemm_small_m(stream, args, sm80_gemm_plan(args, stream.device().facts()));
}

void sm80_bf16_gemm_small_m(Stream& stream, const Sm80GemmArgs& args, const Sm80GemmPlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= kMaxSm80GemmRows, "{} rows", args.m);
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(plan.stages >= 1, "{} x {} x {} does not fit", args.m, args.n, args.k);
  switch (plan.tile_rows) {
    case 16:
      return launch_groups<16>(stream, args, plan);
    default:
      return launch_groups<32>(stream, args, plan);
  }
}

void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args) {
  sm90_bf16_gemm_small_m(
      stream, args, sm90_gemm_plan(args.m, args.n, args.k, stream.device().facts().num_sms));
}

void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan) {
  WR_CHECK_GE(args.m, 1);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  WR_CHECK(args.next_weight == nullptr || sm90_gemm_leaves_norm(args.epilogue, args.n));
  WR_CHECK(args.epilogue != LinearEpilogue::kMax, "maxima by sm90_bf16_gemm_maxima");
  WR_CHECK(std::has_single_bit(static_cast<uint32_t>(plan.split)) &&
           plan.split <= kMaxSm90GemmCluster && plan.stages <= kMaxSm90GemmStages);
  WR_CHECK_LE(sm90_gemm_shared_bytes(plan), static_cast<size_t>(kSm90GemmSharedBytes));
  WR_CHECK(plan.has_term == (args.term != nullptr) &&
               (args.term == nullptr || (args.m <= kMaxTermRows && args.y_stride % 4 == 0)),
           "a term of {} rows, stride {}",
           args.m,
           args.y_stride);
  WR_CHECK(plan.groups == 3 || plan.groups == 1 || (plan.groups == 2 && plan.cols == 128),
           "{} groups of {} columns",
           plan.groups,
           plan.cols);
  const bool one = plan.groups == 1;
  switch (plan.cols) {
    case 32:
      return one ? launch_sm90_gemm<32, 1>(stream, args, plan)
                 : launch_sm90_gemm<32, 3>(stream, args, plan);
    case 64:
      return one ? launch_sm90_gemm<64, 1>(stream, args, plan)
                 : launch_sm90_gemm<64, 3>(stream, args, plan);
    default:
      return one                ? launch_sm90_gemm<128, 1>(stream, args, plan)
             : plan.groups == 2 ? launch_sm90_gemm<128, 2>(stream, args, plan)
                                : launch_sm90_gemm<128, 3>(stream, args, plan);
  }
}

void sm90_bf16_gemm_maxima(Stream& stream, const Sm90GemmArgs& args) {
  WR_CHECK(args.m >= 1 && args.m <= kMaxSm90GemmRows, "{} rows", args.m);
  WR_CHECK(args.k >= 1 && args.k % 8 == 0 && args.x_stride % 8 == 0,
           "k {}, x {}",
           args.k,
           args.x_stride);
  check_maxima(args);
  if (args.m <= 32) {
    return launch_sm90_maxima<32>(stream, args);
  }
  return args.m <= 64 ? launch_sm90_maxima<64>(stream, args)
                      : launch_sm90_maxima<128>(stream, args);
}

}  // namespace warprow::cuda
