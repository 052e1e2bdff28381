// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/sample_stages_cuda.h"
#include "kernels/sample/tile_cuda.cuh"
#include "kernels/sample/top_k_top_p_cuda.cuh"

namespace warprow::cuda {
namespace {

// A row under min_p alone: whether a token survives is known here, so a tile whose winner does not
// gets the best one that does.
__device__ void redraw_tile(const SampleArgs& args,
                            const RowPlan& plan,
                            const LogitRow& logits,
                            float max_logit,
                            DrawList& list,
                            TileResult& result) {
  const auto value = [&](float x) { return plan.divisor == 1.0F ? x : x / plan.divisor; };
  const float lower =
      fmaxf(std::numeric_limits<float>::lowest(), min_p_threshold(value(max_logit), plan.min_p));
  const int32_t winner = result.drawn;
  if (winner == INT32_MAX || value(logits.x[winner]) >= lower) {
    return;
  }
  const auto kept = [&](int32_t first) {
    const float4 v = logits.four(first);
    const auto keep = [&](float x) { return value(x) >= lower ? x : -kInfinity; };
    return float4{keep(v.x), keep(v.y), keep(v.z), keep(v.w)};
  };
  Tile<kTileThreads> tile(static_cast<int32_t>(blockIdx.x));
  tile.load(kept);
  if (threadIdx.x == 0) {
    list.clear();
  }
  __syncthreads();
  const Drawn drawn = draw_tile(tile, GumbelDraw(draw_key(args, plan), plan.divisor), list, kept);
  if (threadIdx.x == 0) {
    result.score = drawn.score;
    result.drawn = drawn.token;
  }
}

// Formula: for each of the row's kTested best-scored tile winners, the mass (or, for a long top_k
//   alone, the number) of the tile's tokens that stand in front of it.
// Shapes: logits [n, vocab] f32; weights [n, tiles, kTested] u64.
// Mapping: a block per tile, a thread per group; groups without a large logit are not read.
// Bytes moved: at most the logits of rows with such a cut; other rows' blocks leave at once.
// Numerics: exponentials to float precision in units of 2^-31 of the largest, summed as integers.
// Preconditions: behind scan. Origin: own.
__global__ void __launch_bounds__(kTileThreads, 3) weigh_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  __shared__ Tested wanted;
  __shared__ DrawList draws;
  __shared__ unsigned long long sums[kTested];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.y;
  const RowPlan plan = plan_row(args, args.rules, i);
  if (plan.row < 0 || !plan.cut() || plan.listed()) {
    return;
  }
  const float* x =
      plan.changed() ? scratch.changed + i * scratch.changed_stride : args.logits.row(i);
  const LogitRow logits(x, args.logits.shape[1]);
  TileResult* const tiles = scratch.tiles + i * scratch.num_tiles;
  float max_logit = -kInfinity;
  for (int32_t t = 0; t < scratch.num_tiles; ++t) {
    max_logit = fmaxf(max_logit, tiles[t].max);
  }
  if (!plan.tested()) {
    redraw_tile(args, plan, logits, max_logit, draws, tiles[blockIdx.x]);
    return;
  }
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
