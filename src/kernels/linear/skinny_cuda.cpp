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
constexpr int kSharedAim = 112 * 1024;
constexpr int kSharedForX = 33 * 1024;

int num_multiprocessors() {
  static const int count = [] {
    int device = 0;
    int sms = 0;
    WR_CUDA(cudaGetDevice(&device));
    WR_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device));
    return sms;
  }();
  return count;
}

int32_t tile_rows_for(const SkinnyArgs& args, int32_t row_groups, int32_t num_sms) {
  if (args.epilogue == LinearEpilogue::kSwiGlu) {
    return 16;
  }
  // Few outputs: small tiles, or some multiprocessors would have no work. Many rows of x: large
  // ones, for x is read once per tile.
  if (args.n < 16 * num_sms) {
    return 8;
  }
  return row_groups >= 2 && args.n >= 32 * 4 * num_sms ? 32 : 16;
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

bool skinny_takes_norm(int32_t m, int32_t k) { return m * skinny_x_pitch(k) <= kSharedForX; }

void finish_plan(SkinnyPlan& plan, const SkinnyArgs& args, int32_t num_sms) {
  const int32_t span =
      args.epilogue == LinearEpilogue::kSwiGlu ? plan.tile_rows / 2 : plan.tile_rows;
  const int32_t outputs = args.epilogue == LinearEpilogue::kSwiGlu ? args.n / 2 : args.n;
  plan.num_tiles = ceil_div(outputs, span);
  plan.num_blocks = std::min(plan.num_tiles, num_sms);
  const int32_t x_bytes = plan.stage_x ? args.m * skinny_x_pitch(args.k) : 0;
  const int32_t sums_bytes = 2 * kSkinnyWarps * plan.tile_rows * args.m * 4 +  //
                             kSkinnyWarps * args.m * 4;
  const int32_t stage_bytes = kSkinnyWarps * plan.tile_rows * kSkinnyChunk * 2;
  const int32_t chunks_a_tile = ceil_div(skinny_chunks(args.k), kSkinnyWarps);
  const int32_t most = chunks_a_tile * ceil_div(plan.num_tiles, plan.num_blocks);
  if (plan.stages == 0) {
    plan.stages = (kSharedAim - x_bytes - sums_bytes) / stage_bytes;
  }
  plan.stages = std::clamp(std::min(plan.stages, most), 1, kSkinnyMaxStages);
  plan.shared_bytes = static_cast<size_t>(stage_bytes) * plan.stages + x_bytes + sums_bytes;
}

SkinnyPlan skinny_plan(const SkinnyArgs& args, int32_t num_sms) {
  SkinnyPlan plan;
  plan.row_groups = args.m <= 8 ? 1 : args.m <= 16 ? 2 : 4;
  plan.tile_rows = tile_rows_for(args, plan.row_groups, num_sms);
  plan.stage_x = args.norm_weight != nullptr || skinny_takes_norm(args.m, args.k);
  plan.stages = 0;
  finish_plan(plan, args, num_sms);
  return plan;
}

void skinny(Stream& stream, const SkinnyArgs& args) {
  skinny(stream, args, skinny_plan(args, num_multiprocessors()));
}

void skinny(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= kMaxSkinnyRows, "{} rows", args.m);
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK_LE(plan.shared_bytes, kSkinnyMaxShared);
  switch (plan.tile_rows) {
    case 8:
      return launch_groups<8>(stream, args, plan);
    case 16:
      return launch_groups<16>(stream, args, plan);
    default:
      return launch_groups<32>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
