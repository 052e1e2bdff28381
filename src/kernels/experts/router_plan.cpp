// SPDX-License-Identifier: Apache-2.0
// Which router's products one kernel does together with the choice, and how. Plain arithmetic, so that a build without CUDA can
// test it.
#include "kernels/experts/router_plan.h"

#include "kernels/experts/route_experts.h"
#include "kernels/linear/linear_plan.h"

namespace warprow {

bool routes_with_product(const DeviceFacts& device,
                         const LinearShape& router,
                         int64_t num_rows,
                         int32_t num_chosen,
                         int32_t num_groups) {
  constexpr size_t kMostSharedBytes = 200 << 10;
  if (device.kind != DeviceKind::kCuda || num_groups > 1 || router.weights != PackedKind::kBF16 ||
      num_rows > cuda::kMaxRouterRows || router.n > cuda::kMaxRouterExperts || router.k % 64 != 0) {
    return false;
  }
  const int32_t parts = cuda::invariant_chunks(router, device);
  return parts > 0 &&
         cuda::router_plan(static_cast<int32_t>(num_rows), router.n, num_chosen, router.k, parts)
                 .shared_bytes <= kMostSharedBytes;
}

}  // namespace warprow

namespace warprow::cuda {

RouterPlan router_plan(
    int32_t num_rows, int32_t num_experts, int32_t num_chosen, int32_t k, int32_t parts) {
  constexpr int32_t kPad = 16;  // against bank conflicts of ldmatrix
  RouterPlan plan;
  plan.parts = parts;
  const int32_t tiles = ceil_div(num_experts, 16);
  plan.tiles = ceil_div(tiles, kRouterCtas / parts);
  plan.experts = tiles * 16;
  plan.pitch = ceil_div(k / 64, parts) * 128 + kPad;
  plan.eights = ceil_div(num_rows, 8);
  const int32_t ints =
      2 * plan.eights * router_experts_a_lane(num_experts) * 32 + num_rows * num_chosen;
  plan.shared_bytes =
      static_cast<size_t>(router_logits_at(plan)) + static_cast<size_t>(ints) * sizeof(float);
  return plan;
}

}  // namespace warprow::cuda
