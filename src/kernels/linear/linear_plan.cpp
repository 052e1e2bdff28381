// SPDX-License-Identifier: Apache-2.0
// Which kernel a product takes on a GPU. Plain arithmetic, so that a build without CUDA tests it and
// plans for a GPU.
#include "kernels/linear/linear_plan.h"

#include "kernels/linear/skinny_cuda.h"
#include "kernels/linear/wide_cuda.h"

#include <algorithm>

namespace warprow {
namespace cuda {
namespace {

// Up to so many rows the skinny kernel is the fastest (bench/kernels/linear_cuda_bench.cu). With
// small matrices the wide one beats it from half as many on; where there is no wide one, a library
// only from twice as many on.
constexpr int64_t kSkinnyRows = 16;
static_assert(2 * kSkinnyRows <= kMaxSkinnyRows);

}  // namespace

OwnRows own_rows(const LinearShape& shape, const DeviceFacts& device) {
  if (shape.batch_invariant) {
    return {};
  }
  const int64_t wide = wide_rows(shape.epilogue, shape.n, shape.k, device);
  int64_t skinny = kSkinnyRows;
  if (is_small_weight(shape.n, shape.k)) {
    skinny = wide > 0 ? kSkinnyRows / 2 : 2 * kSkinnyRows;
  }
  return {skinny, std::max(skinny, wide)};
}

LinearPath linear_path(const LinearShape& shape, int64_t num_rows, const DeviceFacts& device) {
  const OwnRows own = own_rows(shape, device);
  return num_rows <= own.skinny ? LinearPath::kSkinny
         : num_rows <= own.all  ? LinearPath::kWide
                                : LinearPath::kLibrary;
}

size_t linear_scratch_bytes(int64_t /*max_toks*/, int64_t /*max_k*/) {
  return size_t{32} << 20;  // cuBLASLt's workspace
}

}  // namespace cuda

RowRange halved_norm_rows(const DeviceFacts& device,
                          const LinearShape& sum,
                          const LinearShape& behind) {
  if (device.kind != DeviceKind::kCuda || !cuda::wide_leaves_norm(sum.epilogue, sum.n)) {
    return {};
  }
  // Both are wide: only that kernel has either half.
  const cuda::OwnRows first = cuda::own_rows(sum, device);
  const cuda::OwnRows second = cuda::own_rows(behind, device);
  return {std::max(first.skinny, second.skinny) + 1, std::min(first.all, second.all)};
}

}  // namespace warprow
