// SPDX-License-Identifier: Apache-2.0
// The large-M GEMM: checks of its arguments, and which instance runs.
#include "base/check.h"
#include "kernels/linear/large_m/sm90_large_gemm.h"
#include "kernels/linear/small_m/sm90_maxima.h"

namespace warprow::cuda {

void sm90_bf16_gemm_large_m(Stream& stream, const Sm90GemmArgs& args, const Sm90LargePlan& plan) {
  WR_CHECK_GE(args.m, 1);
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || (args.k % 64 == 0 && args.m > kMaxQuarteredRows),
           "norm of {} rows, k {}",
           args.m,
           args.k);
  WR_CHECK(args.next_weight == nullptr, "the first half of a norm is a kernel of its own here");
  WR_CHECK(sm90_large_has(plan, args.y_f32), "{} cols, {} parts", plan.cols, plan.chunks);
  WR_CHECK(
      args.epilogue == LinearEpilogue::kMax || (args.y_stride * (args.y_f32 ? 4 : 2) % 16 == 0 &&
                                                reinterpret_cast<uintptr_t>(args.y) % 16 == 0),
      "y's rows are not 16-byte aligned");
  switch (args.epilogue) {
    case LinearEpilogue::kStore:
      return args.y_f32 ? launch_sm90_large<LinearEpilogue::kStore, true>(stream, args, plan)
                        : launch_sm90_large<LinearEpilogue::kStore, false>(stream, args, plan);
    case LinearEpilogue::kAdd:
      WR_CHECK(args.y_f32, "sums are float32");
      return launch_sm90_large<LinearEpilogue::kAdd, true>(stream, args, plan);
    case LinearEpilogue::kSwiGlu:
      WR_CHECK(!args.y_f32, "gated products are bf16");
      return launch_sm90_large<LinearEpilogue::kSwiGlu, false>(stream, args, plan);
    case LinearEpilogue::kMax:
      check_maxima(args);
      WR_CHECK_EQ(plan.chunks, 1);
      return launch_sm90_large<LinearEpilogue::kMax, true>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
