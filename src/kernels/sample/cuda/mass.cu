// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/cuda/tile.cuh"
#include "kernels/sample/cuda/top_k_top_p.cuh"

#include <algorithm>

namespace warprow::cuda {
namespace {

// For a row under min_p alone. Whether a token survives is known here, so if a tile's winner does not
// survive, it is replaced by the tile's best survivor. All threads of the CTA.
__device__ void redraw_tile(const SampleArgs& args,
                            const RowPlan& plan,
                            const LogitRow& logits,
                            float max_logit,
                            int32_t number,
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
  Tile<kTileThreads> tile(number);
  tile.load(kept);
  __syncthreads();  // all threads have finished with the previous tile's list
  if (threadIdx.x == 0) {
    list.clear();
  }
  const GumbelDraw draw(draw_key(args, plan), plan.divisor);
  TileNoise<kTileThreads> noise;
  noise.make(tile, draw);
  __syncthreads();
  const Drawn drawn = draw_tile(tile, noise, draw, list, kept);
  if (threadIdx.x == 0) {
    result.score = drawn.score;
    result.drawn = drawn.token;
  }
}

struct MassShared {
  Tested wanted;
  unsigned long long sums[kTested];
  DrawList draws;
};

// The first warp: selects the tokens to test, which are the row's best-scored winners.
__device__ void choose_tested(const TileResult* tiles,
                              int32_t num_tiles,
                              const float* x,
                              Tested& wanted) {
  BestTiles best;
  for (int32_t t = 0; t < kTested; ++t) {
    const int32_t tile =
        best.next(num_tiles, [&](int32_t at) { return Drawn{tiles[at].score, tiles[at].drawn}; });
    if (threadIdx.x == 0) {
      wanted.id[t] = tile < 0 ? 0 : tiles[tile].drawn;
      wanted.logit[t] = tile < 0 ? kInfinity : x[wanted.id[t]];
      wanted.before[t] = 0;
    }
  }
}

// Sums the mass of a tile's tokens that precede the tested tokens. All threads of the CTA.
__device__ void sum_tile_masses(const LogitRow& logits,
                                float group_max,
                                float max_logit,
                                float scale,
                                int32_t tile,
                                MassShared& shared,
                                TileMasses& out) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  __syncthreads();
  if (thread < kTested) {
    shared.sums[thread] = 0;
  }
  Tested tested = shared.wanted;
  __syncthreads();
  if (group_max >= tested.least()) {
    const int32_t first = tile * kTileTokens + 4 * thread;
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
    const unsigned long long sum = sum_of_lanes(tested.before[t]);
    if (thread % 32 == 0 && sum != 0) {
      atomicAdd(&shared.sums[t], sum);
    }
  }
  __syncthreads();
  if (thread < kTested) {
    out.before[thread] = shared.sums[thread];
  }
}

// Formula: for each of the row's kTested best-scored tile winners, the mass of the tile's tokens that precede
//   it (or their number, for a long top_k alone); under min_p alone, the tile's best draw that survives.
// Shapes: logits [n, vocab] f32; masses [n, tiles, kTested] u64.
// Mapping: a CTA for some tiles of a row, a thread per group of a tile; groups without a large logit are not
//   read.
// Bytes moved: at most the logits of rows with such a cut; the CTAs of other rows exit at once.
// Numerics: exponentials to float precision in units of 2^-31 of the largest, summed as integers.
// Preconditions: runs after scan. Origin: own.
__global__ void __launch_bounds__(kTileThreads, 3) mass_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  __shared__ MassShared shared;
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
  if (plan.tested() && threadIdx.x < 32) {
    choose_tested(tiles, scratch.num_tiles, x, shared.wanted);
  }
  const float scale = plan.top_p < 1.0F ? kLog2e / plan.divisor : 0.0F;
  for (auto tile = static_cast<int32_t>(blockIdx.x); tile < scratch.num_tiles;
       tile += static_cast<int32_t>(gridDim.x)) {
    if (plan.tested()) {
      const int64_t index = i * scratch.num_tiles + tile;
      const float group_max = scratch.group_max[index * kTileThreads + threadIdx.x];
      sum_tile_masses(logits, group_max, max_logit, scale, tile, shared, scratch.masses[index]);
    } else {
      redraw_tile(args, plan, logits, max_logit, tile, shared.draws, tiles[tile]);
    }
  }
}

}  // namespace

// About two CTAs per CTA slot of a GPU. Most rows have nothing to do, so their CTAs must exit fast; the few
// rows that do should have many CTAs.
void launch_mass(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  constexpr int64_t kBlocks = 800;
  const int64_t n = args.logits.shape[0];
  const int64_t splits = std::clamp<int64_t>(kBlocks / n, 1, scratch.num_tiles);
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(splits), static_cast<unsigned>(n));
  shape.block = dim3(kTileThreads);
  launch(stream, "sample_mass", shape, mass_kernel, args, scratch);
}

}  // namespace warprow::cuda
