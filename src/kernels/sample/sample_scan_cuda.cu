// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/gumbel_cuda.cuh"
#include "kernels/sample/penalties_cuda.cuh"
#include "kernels/sample/sample_row_cuda.cuh"
#include "kernels/sample/sample_stages_cuda.h"

namespace warprow::cuda {
namespace {

constexpr int32_t kWarps = kTileThreads / 32;
constexpr uint32_t kSums = kSampleTopKTopP | kSampleLogprobs;

struct ScanShared {
  float raw_max[kWarps];
  float max[kWarps];
  float bound[kWarps];
  float sum[2][kWarps];
  int32_t argmax;
  DrawShared limit;  // of the tokens with the best bound
  DrawShared drawn;
};

// A thread's part of a tile: token of x[4 * part + c] is first + part * kPartTokens + c.
struct Tile {
  float x[kGroupTokens];
  int32_t first;

  __device__ int32_t token(int32_t j) const { return first + j / 4 * kPartTokens + j % 4; }

  __device__ void load(const LogitRow& row) {
    const bool whole = row.aligned && first + (kTileParts - 1) * kPartTokens + 4 <= row.vocab;
#pragma unroll
    for (int32_t part = 0; part < kTileParts; ++part) {
      const int32_t id = first + part * kPartTokens;
      const float4 v = whole ? __ldg(reinterpret_cast<const float4*>(row.x + id)) : row.four(id);
      x[4 * part] = v.x;
      x[4 * part + 1] = v.y;
      x[4 * part + 2] = v.z;
      x[4 * part + 3] = v.w;
    }
  }

  __device__ float max() const {
    float m = x[0];
#pragma unroll
    for (int32_t j = 1; j < kGroupTokens; ++j) {
      m = max_or_nan(m, x[j]);
    }
    return m;
  }
};

// The block's maximum of each thread's value; one barrier. `parts` is used once.
__device__ float block_max(float v, float* parts) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    v = max_or_nan(v, __shfl_xor_sync(~0U, v, step));
  }
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = v;
  }
  __syncthreads();
  v = parts[0];
#pragma unroll
  for (int32_t w = 1; w < kWarps; ++w) {
    v = max_or_nan(v, parts[w]);
  }
  return v;
}

// Leaves the sum of a warp's values in its part; the order is fixed.
__device__ void warp_sum(float v, float* parts) {
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    v += __shfl_xor_sync(~0U, v, step);
  }
  if (threadIdx.x % 32 == 0) {
    parts[threadIdx.x / 32] = v;
  }
}

// The thread's sum of e^((x - max) / divisor).
__device__ float sum_exp(const Tile& tile, float max, float divisor) {
  if (max == -kInfinity) {
    return 0.0F;
  }
  float sum = 0.0F;
  if (divisor == 1.0F) {
#pragma unroll
    for (const float x : tile.x) {
      sum += __expf(x - max);
    }
  } else {
    const float top = max / divisor;
#pragma unroll
    for (const float x : tile.x) {
      sum += __expf(x / divisor - top);
    }
  }
  return sum;
}

__device__ void change_tile(const SampleArgs& args,
                            const SampleScratch& scratch,
                            const RowPlan& plan,
                            int64_t i,
                            const int32_t* entries,
                            Tile& tile) {
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
      x = changed_logit(x, each[c], (known >> c & 1) != 0, plan.penalties, params);
    }
    if (plan.cut()) {  // up to three floats behind the end: the row's stride has room
      *reinterpret_cast<float4*>(out + id) = {
          tile.x[4 * part], tile.x[4 * part + 1], tile.x[4 * part + 2], tile.x[4 * part + 3]};
    }
  }
}

// The best draw of the tile. The token with the largest bound sets a limit; those whose bounds
// pass it, seldom more than a few, get their exact score.
__device__ int32_t draw_tile(const Tile& tile,
                             const GumbelDraw& draw,
                             ScanShared& shared,
                             Drawn& mine) {
  float bound = -kInfinity;
  int32_t best_part = 0;
#pragma unroll
  for (int32_t part = 0; part < kTileParts; ++part) {
    const PhiloxBlock bits = draw.bits(tile.token(4 * part) / 4);
    float b = -kInfinity;
#pragma unroll
    for (int32_t c = 0; c < 4; ++c) {
      b = fmaxf(b, draw.bound(tile.x[4 * part + c], bits.word[c]));
    }
    best_part = b > bound ? part : best_part;
    bound = fmaxf(b, bound);
  }
  const float best_bound = block_max(bound, shared.bound);
  if (best_bound == -kInfinity) {
    return INT32_MAX;
  }
  if (bound == best_bound) {
    Drawn best;
#pragma unroll
    for (int32_t j = 0; j < kGroupTokens; ++j) {
      if (j / 4 == best_part && tile.x[j] != -kInfinity) {
        best.offer(draw.score(tile.x[j], tile.token(j)), tile.token(j));
      }
    }
    atomicMax(&shared.limit.best, ordered(best.score));
  }
  __syncthreads();
  const float limit = GumbelDraw::beatable(from_ordered(shared.limit.best));
  if (!(bound <= limit)) {
#pragma unroll
    for (int32_t part = 0; part < kTileParts; ++part) {
      const PhiloxBlock bits = draw.bits(tile.token(4 * part) / 4);
#pragma unroll
      for (int32_t c = 0; c < 4; ++c) {
        const float x = tile.x[4 * part + c];
        if (x != -kInfinity && !(draw.bound(x, bits.word[c]) <= limit)) {
          const int32_t id = tile.token(4 * part) + c;
          mine.offer(draw.score(x, id), id);
        }
      }
    }
  }
  return best_of_block(shared.drawn, mine);
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
  constexpr bool kPenalties = (kRules & kSamplePenalties) != 0;
  __shared__ ScanShared shared;
  [[maybe_unused]] __shared__ alignas(16) int32_t entries[kPenalties ? kTileTokens : 4];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.y;
  const RowPlan plan = plan_row(args, kRules & args.rules, i);
  if (plan.row < 0) {
    return;
  }
  const auto thread = static_cast<int32_t>(threadIdx.x);
  Tile tile;
  tile.first = static_cast<int32_t>(blockIdx.x) * kTileTokens + 4 * thread;
  tile.load(LogitRow(args.logits.row(i), args.logits.shape[1]));
  if (thread == 0) {
    shared.argmax = INT32_MAX;
    shared.limit.clear();
    shared.drawn.clear();
  }
  const int64_t index = i * scratch.num_tiles + blockIdx.x;
  const int64_t group = index * kTileThreads + thread;
  float group_max = tile.max();
  const float raw_max = block_max(group_max, shared.raw_max);
  float max = raw_max;
  if constexpr ((kRules & kSampleLogprobs) != 0) {
    if (plan.logprobs) {
      scratch.raw_group_max[group] = group_max;
      warp_sum(sum_exp(tile, raw_max, 1.0F), shared.sum[0]);
    }
  }
  if constexpr (kPenalties) {
    if (plan.changed()) {
      fill_entries(args, plan, static_cast<int32_t>(blockIdx.x) * kTileTokens, entries);
      change_tile(args, scratch, plan, i, entries, tile);
      group_max = tile.max();
      max = block_max(group_max, shared.max);
    }
  }
  if (group_max == max && max != -kInfinity) {
    int32_t j = kGroupTokens - 1;
#pragma unroll
    for (int32_t k = kGroupTokens - 2; k >= 0; --k) {
      j = tile.x[k] == max ? k : j;
    }
    atomicMin(&shared.argmax, tile.token(j));
  }
  Drawn mine;
  int32_t drawn = INT32_MAX;
  if constexpr ((kRules & kSampleRandom) != 0) {
    if (plan.cut()) {
      scratch.group_max[group] = group_max;
      if ((kRules & kSampleTopKTopP) != 0 && plan.top_p_alone()) {
        warp_sum(sum_exp(tile, max, plan.divisor), shared.sum[1]);
      }
    } else if (plan.random) {
      drawn = draw_tile(tile, GumbelDraw(draw_key(args, plan), plan.divisor), shared, mine);
    }
  }
  __syncthreads();
  TileResult& result = scratch.tiles[index];
  if (drawn != INT32_MAX ? mine.token == drawn : thread == 0) {
    result.score = mine.score;
    result.drawn = drawn;
  }
  if (thread == 0) {
    result.raw_max = raw_max;
    result.max = max;
    result.argmax = shared.argmax;
    float sums[2] = {};
    if constexpr ((kRules & kSums) != 0) {
      for (int32_t w = 0; w < kWarps; ++w) {
        sums[0] += shared.sum[0][w];
        sums[1] += shared.sum[1][w];
      }
    }
    result.raw_sum = sums[0];
    result.scaled_sum = sums[1];
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

// Instances: with and without the draw, with and without sums of exponentials, with and without
// rules on tokens.
void launch_scan(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  constexpr void (*kLaunch[])(Stream&, const SampleArgs&, const SampleScratch&) = {
      launch_rules<0>,
      launch_rules<kSampleRandom>,
      launch_rules<kSampleLogprobs>,
      launch_rules < kSampleRandom | kSums >,
      launch_rules<kSamplePenalties>,
      launch_rules < kSamplePenalties | kSampleRandom >
      , launch_rules < kSamplePenalties | kSampleLogprobs >, launch_rules<kAllSampleRules>,
  };
  const uint32_t random = (args.rules & kSampleRandom) != 0 ? 1 : 0;
  const uint32_t sums = (args.rules & (random != 0 ? kSums : kSampleLogprobs)) != 0 ? 2 : 0;
  const uint32_t penalties = (args.rules & kSamplePenalties) != 0 ? 4 : 0;
  kLaunch[random | sums | penalties](stream, args, scratch);
}

}  // namespace warprow::cuda
