// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/sm90_gemm_cuda.h"

#include "base/check.h"
#include "device/cuda/tensor_map.h"
#include "device/device.h"
#include "kernels/linear/sm90_gemm_maps.h"

namespace warprow::cuda {

CUtensorMap sm90_gemm_map(
    const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box_rows) {
  return tensor_map<2>(data,
                       {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                       {static_cast<uint64_t>(stride) * 2},
                       {64, static_cast<uint32_t>(box_rows)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args) {
  sm90_bf16_gemm_small_m(
      stream, args, sm90_gemm_plan(args.m, args.n, args.k, stream.device().facts().num_sms));
}

void sm90_bf16_gemm_small_m(Stream& stream, const Sm90GemmArgs& args, const Sm90GemmPlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= plan.cols, "{} rows of {}", args.m, plan.cols);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  WR_CHECK(args.next_weight == nullptr || sm90_gemm_leaves_norm(args.epilogue, args.n));
  WR_CHECK(plan.split <= kMaxSm90GemmCluster && plan.stages <= kMaxSm90GemmStages);
  WR_CHECK_LE(sm90_gemm_shared_bytes(plan), static_cast<size_t>(kSm90GemmSharedBytes));
  WR_CHECK(plan.groups == 3 || plan.groups == 1, "{} groups", plan.groups);
  const bool one = plan.groups == 1;
  switch (plan.cols) {
    case 32:
      return one ? launch_sm90_gemm<32, 1>(stream, args, plan)
                 : launch_sm90_gemm<32, 3>(stream, args, plan);
    case 64:
      return one ? launch_sm90_gemm<64, 1>(stream, args, plan)
                 : launch_sm90_gemm<64, 3>(stream, args, plan);
    default:
      return one ? launch_sm90_gemm<128, 1>(stream, args, plan)
                 : launch_sm90_gemm<128, 3>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
