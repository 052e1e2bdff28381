// SPDX-License-Identifier: Apache-2.0
// Which kernel a product takes on a GPU. Plain arithmetic, so that a build without CUDA can test it and plan
// for a GPU.
#include "kernels/linear/linear_plan.h"

#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <algorithm>

namespace warprow {
namespace cuda {
namespace {

// Up to this many rows sm80_bf16_gemm_small_m is the fastest (bench/kernels/linear_cuda_bench.cu). For small
// matrices, sm90_bf16_gemm_small_m is faster from half as many rows on; on GPUs without it, cuBLASLt is
// faster only from twice as many on.
constexpr int64_t kSm80GemmRows = 16;
static_assert(2 * kSm80GemmRows <= kMaxSm80GemmRows);

}  // namespace

OwnRows own_rows(const LinearShape& shape, const DeviceFacts& device) {
  if (shape.batch_invariant) {
    return {};
  }
  const int64_t sm90 = sm90_gemm_rows(shape.epilogue, shape.n, shape.k, device);
  int64_t sm80 = kSm80GemmRows;
  if (is_small_weight(shape.n, shape.k)) {
    sm80 = sm90 > 0 ? kSm80GemmRows / 2 : 2 * kSm80GemmRows;
  }
  return {sm80, std::max(sm80, sm90)};
}

LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device) {
  const OwnRows own = own_rows(shape, device);
  return num_rows <= own.sm80  ? LinearPath::kSm80Gemm
         : num_rows <= own.all ? LinearPath::kSm90Gemm
                               : LinearPath::kLibrary;
}

size_t linear_scratch_bytes(int64_t /*max_toks*/, int64_t /*max_k*/) {
  return size_t{32} << 20;  // cuBLASLt's workspace
}

}  // namespace cuda

RowRange halved_norm_rows(const DeviceFacts& device,
                          const LinearShape& sum,
                          const LinearShape& behind) {
  if (device.kind != DeviceKind::kCuda || !cuda::sm90_gemm_leaves_norm(sum.epilogue, sum.n)) {
    return {};
  }
  // Both products must take sm90_bf16_gemm_small_m: no other kernel implements the halves of a norm.
  const cuda::OwnRows first = cuda::own_rows(sum, device);
  const cuda::OwnRows second = cuda::own_rows(behind, device);
  return {std::max(first.sm80, second.sm80) + 1, std::min(first.all, second.all)};
}

}  // namespace warprow
