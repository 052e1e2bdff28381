// SPDX-License-Identifier: Apache-2.0
// Which kernel a product takes on a GPU. Plain arithmetic, so that a build without CUDA can test it and plan
// for a GPU.
#include "kernels/linear/linear_plan.h"

#include "base/math.h"
#include "kernels/linear/small_m/sm80_gemm.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <algorithm>
#include <limits>

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
    // With many chunks the tiles of sm90_bf16_gemm_large_m, which have all of them, are too few at some hundred rows.
    constexpr int64_t kManyChunks = 4;
    const int32_t chunks = invariant_chunks(shape, device);
    return {0, chunks == 0 ? 0 : chunks < kManyChunks ? kMaxSm90GemmRows : 3 * kMaxSm90GemmRows};
  }
  const int64_t sm90 = sm90_gemm_rows(shape.epilogue, shape.n, shape.k, device);
  int64_t sm80 = kSm80GemmRows;
  if (is_small_weight(shape.n, shape.k)) {
    sm80 = sm90 > 0 ? kSm80GemmRows / 2 : 2 * kSm80GemmRows;
  }
  return {sm80, std::max(sm80, sm90)};
}

int32_t invariant_chunks(const LinearShape& shape, const DeviceFacts& device) {
  constexpr int32_t kTiles = 132;        // the SMs of an H100 and an H200
  constexpr int32_t kLeastInputs = 256;  // of a part
  const int32_t outputs = shape.epilogue == LinearEpilogue::kSwiGlu ? shape.n / 2 : shape.n;
  const int32_t aligned = shape.y == DType::kF32 ? 4 : 8;  // TMA stores rows of 16 bytes
  if (device.compute_capability != 90 || outputs % aligned != 0 ||
      (shape.epilogue == LinearEpilogue::kSwiGlu && shape.y == DType::kF32)) {
    return 0;
  }
  int32_t chunks = 1;
  while (2 * chunks <= kMaxSm90GemmCluster && 2 * chunks * ceil_div(shape.n, 64) <= kTiles &&
         shape.k >= 2 * chunks * kLeastInputs) {
    chunks *= 2;
  }
  return chunks;
}

LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device) {
  const OwnRows own = own_rows(shape, device);
  if (num_rows <= own.all) {
    return num_rows <= own.sm80 ? LinearPath::kSm80Gemm : LinearPath::kSm90Gemm;
  }
  // Elsewhere the library is as fast, and a whole step with it slightly faster (docs/experiments/linears_cuda.md).
  return shape.batch_invariant && own.all > 0 ? LinearPath::kSm90LargeGemm : LinearPath::kLibrary;
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
  if (sum.batch_invariant || behind.batch_invariant) {
    const bool both = sum.batch_invariant && behind.batch_invariant &&
                      cuda::invariant_chunks(sum, device) > 0 &&
                      cuda::invariant_chunks(behind, device) > 0;
    return both && behind.k % 64 == 0 ? RowRange{1, std::numeric_limits<int64_t>::max()}
                                      : RowRange{};
  }
  // Both products must take sm90_bf16_gemm_small_m: cuBLASLt does not implement the halves of a norm.
  const cuda::OwnRows first = cuda::own_rows(sum, device);
  const cuda::OwnRows second = cuda::own_rows(behind, device);
  return {std::max(first.sm80, second.sm80) + 1, std::min(first.all, second.all)};
}

}  // namespace warprow
