// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/skinny_cuda.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_check.h"
#include "kernels/linear/skinny_layout.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

// Blocks of two kernels should fit on a multiprocessor at once, so that the second can fill its
// rings while the first still runs.
constexpr int32_t kSharedAim = 112 * 1024;
constexpr int32_t kEnoughStages = 3;         // below, that aim is given up
constexpr int32_t kSmallBytes = 100 * 1024;  // of w for a multiprocessor: all of it in flight
constexpr int32_t kSharedForX = 132 * 1024;
constexpr int32_t kNormInputs = 4 * 4096;  // of all rows of x

SkinnyLimits device_limits() {
  static const SkinnyLimits limits = [] {
    SkinnyLimits out;
    int device = 0;
    WR_CUDA(cudaGetDevice(&device));
    WR_CUDA(cudaDeviceGetAttribute(&out.num_sms, cudaDevAttrMultiProcessorCount, device));
    WR_CUDA(cudaDeviceGetAttribute(
        &out.block_shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return out;
  }();
  return limits;
}

int32_t x_bytes(const SkinnyArgs& args) {
  return skinny_chunks(args.k) * args.m * kSkinnyChunkBytes;
}

int32_t tile_rows_for(const SkinnyArgs& args, int32_t num_sms) {
  return args.m <= 16 && args.n >= 32 * 4 * num_sms ? 32 : 16;
}

template <int kTileRows>
void launch_groups(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan) {
  switch (plan.row_groups) {
    case 1:
      return launch_skinny<kTileRows, 1>(stream, args, plan);
    case 2:
      return launch_skinny<kTileRows, 2>(stream, args, plan);
    default:
      return launch_skinny<kTileRows, 4>(stream, args, plan);
  }
}

}  // namespace

bool skinny_takes_norm(int32_t m, int32_t k) { return m <= 8 && m * k <= kNormInputs; }

SkinnyPlan skinny_plan(const SkinnyArgs& args, const SkinnyLimits& limits) {
  SkinnyPlan given;
  given.tile_rows = tile_rows_for(args, limits.num_sms);
  const SkinnyPlan plan = skinny_plan(args, limits, given);
  if (plan.stages > 0) {
    return plan;
  }
  given.tile_rows = 16;
  return skinny_plan(args, limits, given);
}

SkinnyPlan skinny_plan(const SkinnyArgs& args, const SkinnyLimits& limits, SkinnyPlan given) {
  SkinnyPlan plan = given;
  const auto or_else = [](int32_t& value, int32_t otherwise) {
    value = value == 0 ? otherwise : value;
  };
  or_else(plan.row_groups, args.m <= 8 ? 1 : args.m <= 16 ? 2 : 4);
  or_else(plan.tile_rows, tile_rows_for(args, limits.num_sms));
  plan.stage_x = args.norm_weight != nullptr || x_bytes(args) <= kSharedForX;
  const bool gate = args.epilogue == LinearEpilogue::kSwiGlu;
  plan.num_tiles = ceil_div(gate ? args.n / 2 : args.n, gate ? plan.tile_rows / 2 : plan.tile_rows);
  plan.num_blocks = std::min(plan.num_tiles, limits.num_sms);
  const int32_t rounds = ceil_div(plan.num_tiles, limits.num_sms);
  const bool small = int64_t{rounds} * plan.tile_rows * args.k * 2 <= kSmallBytes;
  or_else(plan.num_warps, small ? 16 : 8);
  or_else(plan.num_teams, plan.num_tiles <= limits.num_sms || plan.num_warps == 8 ? 1 : 2);
  const int32_t team_warps = plan.num_warps / plan.num_teams;
  const int32_t rows = plan.tile_rows + (plan.stage_x ? 0 : plan.row_groups * 8);
  const int32_t stage_bytes = plan.num_warps * rows * kSkinnyChunkBytes;
  const int32_t sums_bytes = plan.num_warps * plan.tile_rows * args.m * 4;
  const int32_t fixed_bytes =
      (plan.stage_x ? x_bytes(args) : 0) + kSkinnyMaxWarps * args.m * 4 + sums_bytes;
  const int32_t chunks_a_tile = ceil_div(skinny_chunks(args.k), team_warps);
  const int32_t most = std::min(
      chunks_a_tile * ceil_div(plan.num_tiles, plan.num_blocks * plan.num_teams), kSkinnyMaxStages);
  const int32_t most_bytes = limits.block_shared_bytes - fixed_bytes;
  int32_t fit = (std::min(kSharedAim, limits.block_shared_bytes) - fixed_bytes) / stage_bytes;
  if (fit < std::min(most, small ? 2 : kEnoughStages)) {
    fit = std::min(most, most_bytes / stage_bytes);
  }
  or_else(plan.stages, fit);
  plan.stages = std::min(plan.stages, most);
  plan.shared_bytes = static_cast<size_t>(fixed_bytes + plan.stages * stage_bytes);
  return plan;
}

void skinny(Stream& stream, const SkinnyArgs& args) {
  skinny(stream, args, skinny_plan(args, device_limits()));
}

void skinny(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= kMaxSkinnyRows, "{} rows", args.m);
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(plan.stages >= 1, "{} x {} x {} does not fit", args.m, args.n, args.k);
  switch (plan.tile_rows) {
    case 16:
      return launch_groups<16>(stream, args, plan);
    default:
      return launch_groups<32>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
