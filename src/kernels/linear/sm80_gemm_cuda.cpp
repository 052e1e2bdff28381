// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/sm80_gemm_cuda.h"

#include "base/check.h"
#include "device/device.h"

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

}  // namespace warprow::cuda
