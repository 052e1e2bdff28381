// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/sample_row.cuh"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/cuda/tile.cuh"
#include "kernels/sample/cuda/token_rules.cuh"

namespace warprow::cuda {
namespace {

constexpr int32_t kWarps = kTileThreads / 32;
constexpr uint32_t kSums = kSampleCut | kSampleLogprobs;
constexpr uint32_t kTokenRules = kSamplePenalties | kSampleTokenLists;

// CTAs that share an SM's registers.
template <uint32_t kRules>
constexpr int32_t kBlocks = (kRules & kTokenRules) != 0 ? 3 : 4;

using ScanTile = Tile<kTileThreads>;

// The warps' results for their parts of the tile, with the fields of TileResult.
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
    sum += exp2_fast((x - max) * scale);
  }
  return sum_of_lanes(sum);
}

// Applies the rules on tokens to any four tokens of a tile.
struct ChangeFour {
  const SampleArgs& args;
  const RowPlan& plan;
  SampleParams params;
  const uint32_t* prompt_mask;  // of the row; null: not needed
  const int32_t* entries;       // of the tile
  int32_t first;                // the tile's first token

  // Which of the tokens id .. id + 3 occur in the prompt, a bit each.
  __device__ uint32_t in_prompt(int32_t id) const {
    return prompt_mask == nullptr ? 0 : prompt_mask[id / 32] >> (id % 32) & 0xfU;
  }

  // x: the logits of these tokens.
  __device__ void operator()(int32_t id, uint32_t known, float (&x)[4]) const {
    const int4 entry = *reinterpret_cast<const int4*>(entries + (id - first));
    if ((entry.x | entry.y | entry.z | entry.w) == 0 && known == 0) {
      return;
    }
    const int32_t each[4] = {entry.x, entry.y, entry.z, entry.w};
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      x[c] = changed_logit(args, plan, params, x[c], id + c, each[c], (known >> c & 1) != 0);
    }
  }
};

// in_prompt of all groups of a thread, the first in the lowest bits. The loads are issued together.
__device__ uint32_t known_in_tile(const ChangeFour& change, int64_t vocab, const ScanTile& tile) {
  uint32_t known = 0;
#pragma unroll
  for (int32_t part = 0; part < kTileParts; ++part) {
    const int32_t id = tile.first + part * kPartTokens;
    known |= (id < vocab ? change.in_prompt(id) : 0U) << (4 * part);
  }
  return known;
}

// Applies the rules to a tile, and stores it in `out` unless that is null.
__device__ void change_tile(
    const ChangeFour& change, uint32_t known, int64_t vocab, float* out, ScanTile& tile) {
#pragma unroll
  for (int32_t part = 0; part < kTileParts; ++part) {
    const int32_t id = tile.first + part * kPartTokens;
    if (id >= vocab) {
      break;
    }
    float x[4] = {
        tile.x[4 * part], tile.x[4 * part + 1], tile.x[4 * part + 2], tile.x[4 * part + 3]};
    change(id, known >> (4 * part) & 0xfU, x);
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      tile.x[4 * part + c] = x[c];
    }
    if (out != nullptr) {  // writes up to three floats past the end: the row's stride is padded
      *reinterpret_cast<float4*>(out + id) = {x[0], x[1], x[2], x[3]};
    }
  }
}

// The first warp: combines the warps' results, in a fixed order.
template <uint32_t kRules>
__device__ void write_result(const ScanShared& shared,
                             float divisor,
                             const Drawn& drawn,
                             TileResult& out) {
  const int32_t warp = static_cast<int32_t>(threadIdx.x) % kWarps;
  const float part = shared.max[warp];
  TileResult r;
  r.max = part;
  r.max = max_of_lanes<kWarps>(r.max);
  r.argmax = __reduce_min_sync(~0U, part == r.max ? shared.argmax[warp] : INT32_MAX);
  r.raw_max = r.max;
  const float raw_part = shared.raw_max[warp];
  if constexpr ((kRules & kTokenRules) != 0) {
    r.raw_max = max_of_lanes<kWarps>(raw_part);
  }
  r.raw_sum = 0.0F;
  r.scaled_sum = 0.0F;
  if constexpr ((kRules & kSums) != 0) {
    if (raw_part != -kInfinity) {
      r.raw_sum = shared.raw_sum[warp] * exp2_fast((raw_part - r.raw_max) * kLog2e);
    }
    if (part != -kInfinity) {
      r.scaled_sum = shared.scaled_sum[warp] * exp2_fast((part - r.max) * (kLog2e / divisor));
    }
#pragma unroll
    for (int32_t step = kWarps / 2; step > 0; step /= 2) {  // both at once: two shuffles in flight
      r.raw_sum += __shfl_xor_sync(~0U, r.raw_sum, step);
      r.scaled_sum += __shfl_xor_sync(~0U, r.scaled_sum, step);
    }
  }
  r.score = drawn.score;
  r.drawn = drawn.token;
  if (threadIdx.x == 0) {
    out = r;
  }
}

// Formula: per tile of a row: maximum with its lowest id, sums of exponentials, the best gumbel_score; per
//   group its maximum.
// Shapes: logits [n, vocab] f32, any row stride; results [n, tiles], group maxima [n, tiles * 256].
// Mapping: a CTA of 256 threads per tile of 8192 tokens, eight 16-byte loads a thread; the tile stays in
//   registers. The template instance contains only the rules that the batch needs.
// Bytes moved: the logits once; 4 bytes per 32 tokens for rows with a cut or logprobs.
// Numerics: exponentials to float precision, 8192 of them summed in float in a fixed tree. Draws are compared
//   in double (gumbel.h); float bounds only rule tokens out.
// Preconditions: scratch of cuda::sample_scratch_bytes; with kSamplePenalties, runs after prompt_mask.
// Origin: own.
template <uint32_t kRules>
__global__ void __launch_bounds__(kTileThreads, kBlocks<kRules>) scan_kernel(
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
  float max = max_of_lanes(group_max);
  shared.raw_max[warp] = max;
  if constexpr ((kRules & kSampleLogprobs) != 0) {
    if (plan.logprobs) {
      scratch.raw_group_max[group] = group_max;
      shared.raw_sum[warp] = sum_exp(tile, max, 1.0F);
    }
  }
  [[maybe_unused]] const ChangeFour change{
      args,
      plan,
      plan.changed() ? args.params(plan.row) : SampleParams{},
      needs_prompt(args, plan) ? scratch.prompt_mask + i * scratch.mask_words : nullptr,
      entries,
      static_cast<int32_t>(blockIdx.x) * kTileTokens};
  if constexpr (kChanges) {
    if (plan.changed()) {
      const uint32_t known = known_in_tile(change, args.logits.shape[1], tile);
      fill_entries(args, plan, change.first, entries);
      change_tile(change,
                  known,
                  args.logits.shape[1],
                  plan.kept() ? scratch.changed + i * scratch.changed_stride : nullptr,
                  tile);
      group_max = tile.max();
      max = max_of_lanes(group_max);
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
                          const float4 v =
                              LogitRow(args.logits.row(i), args.logits.shape[1]).four(id);
                          float x[4] = {v.x, v.y, v.z, v.w};
                          if (kChanges && plan.changed()) {
                            change(id, change.in_prompt(id), x);
                          }
                          return float4{x[0], x[1], x[2], x[3]};
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

// Instances: with and without the draw, with and without cuts and sums of exponentials, with and without
// rules on tokens.
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
