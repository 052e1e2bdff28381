// SPDX-License-Identifier: Apache-2.0
// How sm80_bf16_gemm_small_m splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/small_m/sm80_gemm.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

constexpr int32_t kSmallBytes = 100 * 1024;  // of w per SM
constexpr int32_t kNormInputs = 4 * 4096;    // of all rows of x
constexpr int32_t kNormRows = 8;

// The best plans in the sweep of bench/kernels/linear_cuda_bench.cu, on an H200. `stages` is not yet limited
// to what fits.
Sm80GemmPlan wanted_plan(const Sm80GemmArgs& args, int32_t num_sms) {
  Sm80GemmPlan plan;
  plan.tile_rows = 16;
  plan.num_teams = 2;
  const int32_t tiles_of_32 = ceil_div(args.n, 32);
  const bool fills_device = tiles_of_32 * 4 > num_sms * 3;
  if (int64_t{ceil_div(ceil_div(args.n, 16), num_sms)} * 16 * args.k * 2 <= kSmallBytes) {
    // All weights are in flight at once, together with the next kernel's.
    plan.stages = ceil_div(sm80_gemm_chunks(args.k), kSm80GemmWarps);
    if (args.m > 8 && fills_device) {
      plan.tile_rows = 32;
    } else if (args.m <= 4 && fills_device && tiles_of_32 <= num_sms) {
      plan.tile_rows = args.epilogue == LinearEpilogue::kSwiGlu ? 16 : 32;
      plan.num_teams = plan.tile_rows == 16 ? 2 : 1;
    }
  } else if (args.k <= 2048) {  // short rows: larger tiles, because tile ends are frequent
    plan.tile_rows = 32;
    plan.stages = 1;
  } else if (args.m <= 8) {
    plan.stages = args.norm_weight != nullptr ? 3 : 2;
  } else {  // x costs as much as w: larger tiles
    plan.tile_rows = 32;
    plan.num_teams = 1;
    plan.stages = 2;
  }
  return plan;
}

// Shared memory bytes without the rings, and bytes of one stage of all rings.
struct SharedBytes {
  int32_t fixed = 0;
  int32_t stage = 0;
};
SharedBytes shared_bytes(const Sm80GemmArgs& args, const Sm80GemmPlan& plan) {
  const bool norm = args.norm_weight != nullptr;
  const int32_t warps = plan.num_teams * kSm80GemmWarps;
  const int32_t x = norm ? sm80_gemm_chunks(args.k) * args.m * kSm80GemmChunkBytes : 0;
  const int32_t squares = kSm80GemmMaxTeams * kSm80GemmWarps * args.m * 4;
  const int32_t sums = warps * plan.tile_rows * args.m * 4;
  return {x + squares + sums, warps * sm80_gemm_stage_bytes(plan.tile_rows, args.m, norm)};
}

// Makes the stages fit into `limit` bytes. Drops to one team if needed.
void fit_stages(Sm80GemmPlan& plan, const Sm80GemmArgs& args, int32_t limit) {
  const auto fit = [&] {
    const SharedBytes bytes = shared_bytes(args, plan);
    return std::max(0, limit - bytes.fixed) / bytes.stage;
  };
  if (plan.num_teams == 2 && fit() < plan.stages) {
    plan.num_teams = 1;
    plan.stages = kSm80GemmMaxStages;
  }
  plan.stages = std::min(plan.stages, fit());
}

}  // namespace

bool sm80_gemm_takes_norm(int32_t m, int32_t k) { return m <= kNormRows && m * k <= kNormInputs; }

Sm80GemmPlan sm80_gemm_plan(const Sm80GemmArgs& args, const DeviceFacts& device) {
  Sm80GemmPlan plan = wanted_plan(args, device.num_sms);
  finish_plan(plan, args, device);
  if (plan.stages == 0) {  // a device with little shared memory
    plan = {.tile_rows = 16, .num_teams = 1, .stages = kSm80GemmMaxStages};
    finish_plan(plan, args, device);
  }
  return plan;
}

void finish_plan(Sm80GemmPlan& plan, const Sm80GemmArgs& args, const DeviceFacts& device) {
  plan.row_groups = args.m <= 8 ? 1 : args.m <= 16 ? 2 : 4;
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  plan.num_tiles = ceil_div(gate ? args.n / 2 : args.n, gate ? plan.tile_rows / 2 : plan.tile_rows);
  plan.num_blocks = std::min(plan.num_tiles, device.num_sms);
  fit_stages(plan, args, device.max_shared_bytes);
  const int32_t most = ceil_div(sm80_gemm_chunks(args.k), kSm80GemmWarps) *
                       ceil_div(plan.num_tiles, plan.num_blocks * plan.num_teams);
  plan.stages = std::min({plan.stages, most, kSm80GemmMaxStages});
  const SharedBytes bytes = shared_bytes(args, plan);
  const int64_t total = int64_t{bytes.fixed} + int64_t{plan.stages} * bytes.stage;
  plan.shared_bytes = static_cast<size_t>(total);
}

}  // namespace warprow::cuda
