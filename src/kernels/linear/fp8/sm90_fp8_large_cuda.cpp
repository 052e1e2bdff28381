// SPDX-License-Identifier: Apache-2.0
// The GEMM of e4m3 numbers for many rows: checks of its arguments, and which instance runs.
#include "kernels/linear/fp8/sm90_fp8_large.h"

#include "base/check.h"

namespace warprow::cuda {

bool sm90_fp8_large_takes(const Sm90GemmArgs& args) {
  return args.y_stride * (args.y_f32 ? 4 : 2) % 16 == 0 &&
         reinterpret_cast<uintptr_t>(args.y) % 16 == 0 &&
         !(args.epilogue == LinearEpilogue::kSwiGlu && args.y_f32);
}

void sm90_fp8_gemm_large(Stream& stream,
                         const Sm90Fp8Args& args,
                         const PackedWeight& weight,
                         const Sm90Fp8LargePlan& plan) {
  const Sm90GemmArgs& a = args.a;
  WR_CHECK(weight.kind == PackedKind::kF8F8 && weight.inputs != F8Inputs::kNone);
  WR_CHECK(a.m >= 1 && args.x.numbers != nullptr && sm90_fp8_large_takes(a));
  WR_CHECK(a.n == weight.n && a.k == weight.k && a.k % 8 == 0, "{} x {}", weight.n, weight.k);
  WR_CHECK(a.next_weight == nullptr, "the first half of a norm is a kernel of its own here");
  WR_CHECK(plan.cols == 128 ||
               (plan.cols == 192 && plan.parts == 1 && weight.inputs != F8Inputs::kGroup),
           "{} cols",
           plan.cols);
  switch (a.epilogue) {
    case LinearEpilogue::kStore:
      return a.y_f32
                 ? launch_sm90_fp8_large<LinearEpilogue::kStore, true>(stream, args, weight, plan)
                 : launch_sm90_fp8_large<LinearEpilogue::kStore, false>(stream, args, weight, plan);
    case LinearEpilogue::kAdd:
      WR_CHECK(a.y_f32, "sums are float32");
      return launch_sm90_fp8_large<LinearEpilogue::kAdd, true>(stream, args, weight, plan);
    case LinearEpilogue::kSwiGlu:
      return launch_sm90_fp8_large<LinearEpilogue::kSwiGlu, false>(stream, args, weight, plan);
    case LinearEpilogue::kMax:
      WR_CHECK(false, "maxima of products of e4m3 inputs");
  }
}

}  // namespace warprow::cuda
