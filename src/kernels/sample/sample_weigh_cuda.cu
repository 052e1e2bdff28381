// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/gumbel_cuda.cuh"
#include "kernels/sample/sample_stages_cuda.h"
#include "kernels/sample/top_k_top_p_cuda.cuh"

namespace warprow::cuda {
namespace {

// Formula: for each of the row's kTested best-scored tile winners, the mass (or, for a long top_k
//   alone, the number) of the tile's tokens that stand in front of it.
// Shapes: logits [n, vocab] f32; weights [n, tiles, kTested] u64.
// Mapping: a block per tile, a thread per group; groups without a large logit are not read.
// Bytes moved: at most the logits of rows with such a cut; other rows' blocks leave at once.
// Numerics: exponentials to float precision in units of 2^-31 of the largest, summed as integers.
// Preconditions: behind scan. Origin: own.
__global__ void __launch_bounds__(kTileThreads) weigh_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  __shared__ Tested wanted;
  __shared__ unsigned long long sums[kTested];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.y;
  const RowPlan plan = plan_row(args, args.rules, i);
  if (plan.row < 0 || !plan.tested()) {
    return;
  }
  const float* x =
      plan.changed() ? scratch.changed + i * scratch.changed_stride : args.logits.row(i);
  const LogitRow logits(x, args.logits.shape[1]);
  const TileResult* tiles = scratch.tiles + i * scratch.num_tiles;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  if (thread < 32) {
    BestTiles best;
    for (int32_t t = 0; t < kTested; ++t) {
      const int32_t tile = best.next(
          scratch.num_tiles, [&](int32_t at) { return Drawn{tiles[at].score, tiles[at].drawn}; });
      if (thread == 0) {
        const int32_t id = tile < 0 ? 0 : tiles[tile].drawn;
        wanted.id[t] = id;
        wanted.logit[t] = tile < 0 ? kInfinity : x[id];
        sums[t] = 0;
      }
    }
  }
  float max_logit = -kInfinity;
  for (int32_t t = 0; t < scratch.num_tiles; ++t) {
    max_logit = fmaxf(max_logit, tiles[t].max);
  }
  __syncthreads();
  Tested tested;
#pragma unroll
  for (int32_t t = 0; t < kTested; ++t) {
    tested.id[t] = wanted.id[t];
    tested.logit[t] = wanted.logit[t];
    tested.before[t] = 0;
  }
  const int64_t index = i * scratch.num_tiles + blockIdx.x;
  const float scale = plan.top_p < 1.0F ? kLog2e / plan.divisor : 0.0F;
  if (scratch.group_max[index * kTileThreads + thread] >= tested.least()) {
    const int32_t first = static_cast<int32_t>(blockIdx.x) * kTileTokens + 4 * thread;
    float4 v[kTileParts];
#pragma unroll
    for (int32_t part = 0; part < kTileParts; ++part) {
      v[part] = logits.four(first + part * kPartTokens);
    }
#pragma unroll
    for (int32_t part = 0; part < kTileParts; ++part) {
      const float four[4] = {v[part].x, v[part].y, v[part].z, v[part].w};
      tested.add(four, first + part * kPartTokens, max_logit, scale);
    }
  }
#pragma unroll
  for (int32_t t = 0; t < kTested; ++t) {
    unsigned long long sum = tested.before[t];
#pragma unroll
    for (int32_t step = 16; step > 0; step /= 2) {
      sum += __shfl_xor_sync(~0U, sum, step);
    }
    if (thread % 32 == 0 && sum != 0) {
      atomicAdd(&sums[t], sum);
    }
  }
  __syncthreads();
  if (thread < kTested) {
    scratch.weights[index].before[thread] = sums[thread];
  }
}

}  // namespace

void launch_weigh(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(scratch.num_tiles), static_cast<unsigned>(args.logits.shape[0]));
  shape.block = dim3(kTileThreads);
  launch(stream, "sample_weigh", shape, weigh_kernel, args, scratch);
}

}  // namespace warprow::cuda
