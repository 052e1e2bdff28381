// SPDX-License-Identifier: Apache-2.0
// The GEMM of e4m3 numbers: checks of its arguments, and which instance runs.
#include "kernels/linear/fp8/sm90_fp8_gemm.h"

#include "base/check.h"
#include "kernels/linear/fp8/fp8_tiles.h"

#include <bit>

namespace warprow::cuda {

void sm90_fp8_gemm(Stream& stream,
                   const Sm90Fp8Args& args,
                   const PackedWeight& weight,
                   const Sm90Fp8Plan& plan) {
  const Sm90GemmArgs& a = args.a;
  WR_CHECK(weight.kind == PackedKind::kF8F8 && weight.inputs != F8Inputs::kNone);
  WR_CHECK_GE(a.m, 1);
  WR_CHECK(a.n == weight.n && a.k == weight.k, "{} x {}", weight.n, weight.k);
  WR_CHECK(a.epilogue != LinearEpilogue::kAdd || a.y_f32, "sums are float32");
  WR_CHECK(a.k % 8 == 0 && a.n % kFp8UnitRows == 0, "{} x {}", a.n, a.k);
  WR_CHECK(a.next_weight == nullptr || sm90_gemm_leaves_norm(a.epilogue, a.n));
  WR_CHECK(a.epilogue != LinearEpilogue::kSwiGlu || a.n % (2 * kFp8UnitRows) == 0, "n {}", a.n);
  WR_CHECK(plan.rounds ? a.m == 1 && plan.cols == 8 : args.x.numbers != nullptr);
  WR_CHECK(std::has_single_bit(static_cast<uint32_t>(plan.split)) &&
           plan.split <= kMaxSm90GemmCluster && plan.stages >= 2 &&
           plan.stages <= kMaxSm90GemmStages);
  WR_CHECK(!plan.resident || (plan.cols == 128 && plan.split == 1));
  WR_CHECK(plan.groups == 1 || (plan.groups == 2 && plan.cols == 128 && !plan.resident),
           "{} groups",
           plan.groups);
  WR_CHECK_LE(sm90_fp8_shared_bytes(plan, a.k), static_cast<size_t>(kSm90GemmSharedBytes));
  switch (plan.cols) {
    case 8:
      return plan.rounds ? launch_sm90_fp8<8, true, 1>(stream, args, weight, plan)
                         : launch_sm90_fp8<8, false, 1>(stream, args, weight, plan);
    case 16:
      return launch_sm90_fp8<16, false, 1>(stream, args, weight, plan);
    case 32:
      return launch_sm90_fp8<32, false, 1>(stream, args, weight, plan);
    case 64:
      return launch_sm90_fp8<64, false, 1>(stream, args, weight, plan);
    default:
      return plan.groups == 2 ? launch_sm90_fp8<128, false, 2>(stream, args, weight, plan)
                              : launch_sm90_fp8<128, false, 1>(stream, args, weight, plan);
  }
}

}  // namespace warprow::cuda
