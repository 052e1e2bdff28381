// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/penalties_cuda.cuh"
#include "kernels/sample/sample_row_cuda.cuh"
#include "kernels/sample/sample_stages_cuda.h"
#include "kernels/sample/tile_cuda.cuh"

namespace warprow::cuda {
namespace {

constexpr int32_t kWarps = kTileThreads / 32;
constexpr uint32_t kSums = kSampleCut | kSampleLogprobs;
constexpr uint32_t kTokenRules = kSamplePenalties | kSampleTokenLists;

using ScanTile = Tile<kTileThreads>;

// What each warp found in its part of the tile, as TileResult has it for the whole.
struct ScanShared {
  float raw_max[kWarps];
  float raw_sum[kWarps];
  float max[kWarps];
  int32_t argmax[kWarps];
  float scaled_sum[kWarps];
  DrawList draws;
};

// The warp's sum of e^((x - max) / divisor).
__device__ float sum_exp(const ScanTile& tile, float max, float divisor) {
  float sum = 0.0F;
  if (max == -kInfinity) {
    return sum;
  }
  const float scale = kLog2e / divisor;
#pragma unroll
  for (const float x : tile.x) {
    sum += exp2_of((x - max) * scale);
  }
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    sum += __shfl_xor_sync(~0U, sum, step);
  }
  return sum;
}

__device__ void change_tile(const SampleArgs& args,
                            const SampleScratch& scratch,
                            const RowPlan& plan,
                            int64_t i,
                            const int32_t* entries,
                            ScanTile& tile) {
  const SampleParams params = args.params(plan.row);
  const bool prompt = needs_prompt(args, plan);
  const uint32_t* mask = scratch.prompt_mask + i * scratch.mask_words;
  float* const out = scratch.changed + i * scratch.changed_stride;
#pragma unroll
  for (int32_t part = 0; part < kTileParts; ++part) {
    const int32_t id = tile.first + part * kPartTokens;
    if (id >= args.logits.shape[1]) {
      break;
    }
    const int32_t at = part * kPartTokens + 4 * static_cast<int32_t>(threadIdx.x);
    const int4 entry = *reinterpret_cast<const int4*>(entries + at);
    const uint32_t known = prompt ? mask[id / 32] >> (id % 32) : 0;
    const int32_t each[4] = {entry.x, entry.y, entry.z, entry.w};
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      float& x = tile.x[4 * part + c];
      x = changed_logit(args, plan, params, x, id + c, each[c], (known >> c & 1) != 0);
    }
    if (plan.kept()) {  // up to three floats behind the end: the row's stride has room
      *reinterpret_cast<float4*>(out + id) = {
          tile.x[4 * part], tile.x[4 * part + 1], tile.x[4 * part + 2], tile.x[4 * part + 3]};
    }
  }
}

// Calls combine(step) for the steps of a reduction over kWarps lanes.
template <typename Combine>
__device__ void over_warps(const Combine& combine) {
#pragma unroll
  for (int32_t step = kWarps / 2; step > 0; step /= 2) {
    combine(step);
  }
}

// The first warp: puts the warps' findings together, in an order that is always the same.
template <uint32_t kRules>
__device__ void write_result(const ScanShared& shared,
                             float divisor,
                             const Drawn& drawn,
                             TileResult& out) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) % kWarps;
  const float part = shared.max[warp];
  TileResult r;
  r.max = part;
  over_warps([&](int32_t step) { r.max = max_or_nan(r.max, __shfl_xor_sync(~0U, r.max, step)); });
  r.argmax = __reduce_min_sync(~0U, part == r.max ? shared.argmax[warp] : INT32_MAX);
  r.raw_max = r.max;
  const float raw_part = shared.raw_max[warp];
  if constexpr ((kRules & kTokenRules) != 0) {
    r.raw_max = raw_part;
    over_warps([&](int32_t step) {
      r.raw_max = max_or_nan(r.raw_max, __shfl_xor_sync(~0U, r.raw_max, step));
    });
  }
  r.raw_sum = 0.0F;
  r.scaled_sum = 0.0F;
  if constexpr ((kRules & kSums) != 0) {
    if (raw_part != -kInfinity) {
      r.raw_sum = shared.raw_sum[warp] * exp2_of((raw_part - r.raw_max) * kLog2e);
    }
    if (part != -kInfinity) {
      r.scaled_sum = shared.scaled_sum[warp] * exp2_of((part - r.max) * (kLog2e / divisor));
    }
    over_warps([&](int32_t step) {
      r.raw_sum += __shfl_xor_sync(~0U, r.raw_sum, step);
      r.scaled_sum += __shfl_xor_sync(~0U, r.scaled_sum, step);
    });
  }
  r.score = drawn.score;
  r.drawn = drawn.token;
  if (threadIdx.x == 0) {
    out = r;
  }
}

// Formula: per tile of a row: maximum with its lowest id, sums of exponentials, the best
//   gumbel_score; per group its maximum.
// Shapes: logits [n, vocab] f32, row stride free; results [n, tiles], group maxima [n, tiles * 256].
// Mapping: a block of 256 threads per tile of 8192 tokens, eight 16-byte loads to a thread, the
//   tile stays in registers. What no row of the batch needs is not compiled into the instance.
// Bytes moved: the logits once; 4 bytes per 32 tokens for rows with a cut or logprobs.
// Numerics: exponentials to float precision, 8192 of them summed in float in a fixed tree. Draws
//   are compared in double (gumbel.h); float bounds only rule out.
// Preconditions: scratch of cuda::sample_scratch_bytes; with kSamplePenalties behind prompt_mask.
// Origin: own.
template <uint32_t kRules>
__global__ void __launch_bounds__(kTileThreads, 4) scan_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  constexpr bool kChanges = (kRules & kTokenRules) != 0;
  __shared__ ScanShared shared;
  [[maybe_unused]] __shared__ alignas(16) int32_t entries[kChanges ? kTileTokens : 4];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.y;
  if (params_row(args, i) < 0) {
    return;
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t warp = thread / 32;
  ScanTile tile(static_cast<int32_t>(blockIdx.x));
  tile.load(LogitRow(args.logits.row(i), args.logits.shape[1]));
  const RowPlan plan = plan_row(args, kRules & args.rules, i);
  [[maybe_unused]] TileNoise<kTileThreads> noise;
  if constexpr ((kRules & kSampleRandom) != 0) {
    if (thread == 0) {
      shared.draws.clear();
    }
    if (plan.drawn()) {
      noise.make(tile, GumbelDraw(draw_key(args, plan), plan.divisor));
    }
    __syncthreads();
  }
  const int64_t index = i * scratch.num_tiles + blockIdx.x;
  const int64_t group = index * kTileThreads + thread;
  float group_max = tile.max();
  float max = warp_max(group_max);
  shared.raw_max[warp] = max;
  if constexpr ((kRules & kSampleLogprobs) != 0) {
    if (plan.logprobs) {
      scratch.raw_group_max[group] = group_max;
      shared.raw_sum[warp] = sum_exp(tile, max, 1.0F);
    }
  }
  if constexpr (kChanges) {
    if (plan.changed()) {
      fill_entries(args, plan, static_cast<int32_t>(blockIdx.x) * kTileTokens, entries);
      change_tile(args, scratch, plan, i, entries, tile);
      group_max = tile.max();
      max = warp_max(group_max);
    }
  }
  shared.max[warp] = max;
  if (!plan.random || plan.cut()) {
    shared.argmax[warp] = __reduce_min_sync(~0U, group_max == max ? tile.find(max) : INT32_MAX);
  }
  Drawn drawn;
  if constexpr ((kRules & kSampleCut) != 0) {
    if (plan.cut()) {
      scratch.group_max[group] = group_max;
      if (plan.top_p_alone()) {
        shared.scaled_sum[warp] = sum_exp(tile, max, plan.divisor);
      }
    }
  }
  if constexpr ((kRules & kSampleRandom) != 0) {
    if (plan.drawn()) {
      drawn = draw_tile(tile,
                        noise,
                        GumbelDraw(draw_key(args, plan), plan.divisor),
                        shared.draws,
                        [&](int32_t id) {
                          const float* x = plan.changed()
                                               ? scratch.changed + i * scratch.changed_stride
                                               : args.logits.row(i);
                          return LogitRow(x, args.logits.shape[1]).four(id);
                        });
    } else {
      __syncthreads();
    }
  } else {
    __syncthreads();
  }
  if (warp == 0) {
    write_result<kRules>(shared, plan.divisor, drawn, scratch.tiles[index]);
  }
}

template <uint32_t kRules>
void launch_rules(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  LaunchShape shape;
  shape.grid =
      dim3(static_cast<unsigned>(scratch.num_tiles), static_cast<unsigned>(args.logits.shape[0]));
  shape.block = dim3(kTileThreads);
  launch(stream, "sample_scan", shape, scan_kernel<kRules>, args, scratch);
}

}  // namespace

// Instances: with and without the draw, with and without cuts and sums of exponentials, with and
// without rules on tokens.
void launch_scan(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  constexpr void (*kLaunch[])(Stream&, const SampleArgs&, const SampleScratch&) = {
      launch_rules<0>,
      launch_rules<kSampleRandom>,
      launch_rules<kSampleLogprobs>,
      launch_rules<(kSampleRandom | kSums)>,
      launch_rules<kTokenRules>,
      launch_rules<(kTokenRules | kSampleRandom)>,
      launch_rules<(kTokenRules | kSampleLogprobs)>,
      launch_rules<kAllSampleRules>,
  };
  const uint32_t random = (args.rules & kSampleRandom) != 0 ? 1 : 0;
  const uint32_t sums = (args.rules & (random != 0 ? kSums : kSampleLogprobs)) != 0 ? 2 : 0;
  const uint32_t token_rules = (args.rules & kTokenRules) != 0 ? 4 : 0;
  kLaunch[random | sums | token_rules](stream, args, scratch);
}

}  // namespace warprow::cuda
