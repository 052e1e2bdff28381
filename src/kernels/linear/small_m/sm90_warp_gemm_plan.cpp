// SPDX-License-Identifier: Apache-2.0
// How sm90_bf16_gemm_warps splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/small_m/sm90_warp_gemm.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

static_assert(kMaxSm90WarpRows <= kMaxQuarteredRows);

constexpr int32_t kAlign = 1024;

// Of one stage of one warp: 16 rows of w and m rows of x, and a barrier.
int32_t stage_bytes(int32_t m) {
  return kSm90WarpUnit * kSm90WarpSteps * 128 + sm90_warp_x_bytes(m) + 8;
}
// Of a warp's partial sums: eight rows of 20 floats, and a second copy for the next unit.
int32_t sum_bytes(const Sm90WarpPlan& plan) {
  constexpr int32_t kBytes = 8 * 20 * 4;
  return plan.num_units > plan.num_blocks * plan.groups ? 2 * kBytes : kBytes;
}

}  // namespace

size_t sm90_warp_shared_bytes(const Sm90WarpPlan& plan, int32_t m) {
  const int32_t warps = plan.parts * plan.groups;
  return static_cast<size_t>(warps) *
             static_cast<size_t>(plan.stages * stage_bytes(m) + sum_bytes(plan)) +
         16 + kAlign;
}

// The best of 112 to 225 KB in whole steps (docs/experiments/linears_cuda.md).
int32_t sm90_warp_room(int32_t n, int32_t k, LinearEpilogue epilogue, int32_t num_sms) {
  constexpr int32_t kBesideAttention =
      130 << 10;  // of a product without epilogue, as that of q, k and v
  constexpr int32_t kBesideProduct = 150 << 10;
  if (int64_t{2} * n * k > int64_t{kSm90GemmSharedBytes} * num_sms) {
    return kSm90GemmSharedBytes;
  }
  return epilogue == LinearEpilogue::kStore ? kBesideAttention : kBesideProduct;
}

Sm90WarpPlan sm90_warp_plan(int32_t m,
                            int32_t n,
                            int32_t k,
                            LinearEpilogue epilogue,
                            int32_t parts,
                            int32_t num_sms,
                            int32_t shared_bytes) {
  if (shared_bytes == 0) {
    shared_bytes = sm90_warp_room(n, k, epilogue, num_sms);
  }
  Sm90WarpPlan plan;
  plan.parts = parts;
  const bool gate = epilogue == LinearEpilogue::kSwiGlu;
  plan.num_units = ceil_div(gate ? n / 2 : n, gate ? kSm90WarpUnit / 2 : kSm90WarpUnit);
  plan.num_blocks = std::min(plan.num_units, num_sms);
  // As many units at once as a CTA has, or in rounds of equal size, so that every warp has some stages.
  constexpr int32_t kFewStages = 2;
  const int32_t units = ceil_div(plan.num_units, plan.num_blocks);
  int32_t rounds = ceil_div(units, kMaxSm90Warps / parts);
  const auto stages = [&] {
    plan.groups = ceil_div(units, rounds);
    return ((shared_bytes - kAlign - 16) / (plan.groups * parts) - sum_bytes(plan)) /
           stage_bytes(m);
  };
  int32_t fit = stages();
  while (fit < kFewStages && plan.groups > 1) {
    ++rounds;
    fit = stages();
  }
  const int32_t needed = ceil_div(ceil_div(k / 64, parts), kSm90WarpSteps) * rounds;
  plan.stages = std::min({std::max(fit, 2), needed, kMaxSm90WarpStages});
  return plan;
}

}  // namespace warprow::cuda
