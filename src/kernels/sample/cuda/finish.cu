// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/linear/largest.cuh"
#include "kernels/sample/cuda/draw.cuh"
#include "kernels/sample/cuda/logprobs.cuh"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/cuda/verify_draft.cuh"

namespace warprow::cuda {
namespace {

// The results of a row's tiles, combined.
struct RowFacts {
  float raw_max;
  float max;
  int32_t argmax;
  int32_t drawn;
  double lse;         // of the raw logits
  double scaled_sum;  // of e^((x - max) / divisor)

  // NaN, or no finite maximum, before or after the rules on tokens.
  __device__ bool bad() const { return !isfinite(raw_max) || !isfinite(max); }
};

// One warp; every lane gets the result. Sums are in double, in a fixed order.
__device__ RowFacts row_facts(const TileResult* tiles, int32_t n, const RowPlan& plan) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  RowFacts facts{-kInfinity, -kInfinity, INT32_MAX, INT32_MAX, 0.0, 0.0};
  Drawn drawn;
  for (int32_t t = lane; t < n; t += 32) {
    const TileResult tile = tiles[t];
    facts.raw_max = max_or_nan(facts.raw_max, tile.raw_max);
    if (tile.max > facts.max) {
      facts.argmax = tile.argmax;
    }
    facts.max = max_or_nan(facts.max, tile.max);
    drawn.offer(tile.score, tile.drawn);
  }
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    facts.raw_max = max_or_nan(facts.raw_max, __shfl_xor_sync(~0U, facts.raw_max, step));
    const float max = __shfl_xor_sync(~0U, facts.max, step);
    const int32_t argmax = __shfl_xor_sync(~0U, facts.argmax, step);
    if (max > facts.max || (max == facts.max && argmax < facts.argmax)) {
      facts.argmax = argmax;
    }
    facts.max = max_or_nan(facts.max, max);
    const double score = __shfl_xor_sync(~0U, drawn.score, step);
    drawn.offer(score, __shfl_xor_sync(~0U, drawn.token, step));
  }
  facts.drawn = drawn.token;
  if (!plan.logprobs && !plan.top_p_alone()) {
    return facts;
  }
  for (int32_t t = lane; t < n; t += 32) {
    const TileResult tile = tiles[t];
    if (tile.raw_max != -kInfinity) {
      facts.lse += tile.raw_sum * exp(static_cast<double>(tile.raw_max) - facts.raw_max);
    }
    if (tile.max != -kInfinity) {
      const double below = tile.max / plan.divisor - facts.max / plan.divisor;
      facts.scaled_sum += tile.scaled_sum * exp(below);
    }
  }
#pragma unroll
  for (int32_t step = 16; step > 0; step /= 2) {
    facts.lse += __shfl_xor_sync(~0U, facts.lse, step);
    facts.scaled_sum += __shfl_xor_sync(~0U, facts.scaled_sum, step);
  }
  facts.lse = facts.raw_max + log(facts.lse);
  return facts;
}

// One thread: the outputs of a row that yields no token.
__device__ void clear_outputs(const SampleArgs& args, int64_t i) {
  args.sampled(i) = -1;
  args.logprob(i) = 0.0F;
  args.rank(i) = 0;
  args.error(i) = static_cast<int32_t>(SampleError::kNone);
  if (args.top_ids.shape[1] > 0) {
    args.top_ids(i, 0) = -1;
    args.top_logprobs(i, 0) = -kInfinity;
  }
}

// One thread: writes the token of a row without a cut.
__device__ void write_token(const SampleArgs& args,
                            const RowPlan& plan,
                            int64_t i,
                            const RowFacts& facts) {
  if (facts.bad()) {
    const bool nothing_left = isfinite(facts.raw_max) && facts.max == -kInfinity;
    const SampleError error = nothing_left ? SampleError::kNothingLeft : SampleError::kBadLogits;
    args.error(i) = static_cast<int32_t>(error);
    args.sampled(i) = -static_cast<int32_t>(error);
  } else {
    args.sampled(i) = plan.random ? facts.drawn : facts.argmax;
  }
}

constexpr int32_t kPlainRows = 4;  // rows of a CTA, one a warp

// Formula: the tiles' maximum, or for a random row their best score; lowest id at ties.
// Shapes: tiles [n, tiles]; sampled, logprob, rank, error [n]; top_ids, top_logprobs [n, max_top].
// Mapping: a warp per row. Bytes moved: 32 per tile.
__global__ void __launch_bounds__(kPlainRows * 32) finish_plain_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  pdl_wait();
  pdl_release();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPlainRows + threadIdx.x / 32;
  if (i >= args.logits.shape[0]) {
    return;
  }
  const RowPlan plan = plan_row(args, args.rules, i);
  if (threadIdx.x % 32 == 0) {
    clear_outputs(args, i);
  }
  if (plan.row < 0) {
    return;
  }
  const RowFacts facts = row_facts(scratch.tiles + i * scratch.num_tiles, scratch.num_tiles, plan);
  if (threadIdx.x % 32 == 0) {
    write_token(args, plan, i, facts);
  }
}

constexpr int32_t kMaximaThreads = 512;  // so that all loads of a row are in flight together

// Formula: the largest of a row's maxima, lowest id at ties.
// Shapes: maxima [n, numbers]; outputs as above. Mapping: a CTA per row. Bytes moved: 8 per 64 tokens.
__global__ void __launch_bounds__(kMaximaThreads) maxima_kernel(
    const __grid_constant__ SampleArgs args) {
  __shared__ Largest of_warps[kMaximaThreads / 32];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.x;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool yields = params_row(args, i) >= 0;
  Largest largest;
  if (yields) {
    const OutputMax* const row = args.maxima.row(i);
#pragma unroll 5
    for (int32_t at = thread; at < args.maxima.shape[1]; at += kMaximaThreads) {
      const OutputMax m = row[at];
      largest.take({m.value, m.output});
    }
  }
  largest.take_lanes<32>();
  if (thread % 32 == 0) {
    of_warps[thread / 32] = largest;
  }
  __syncthreads();
  if (thread != 0) {
    return;
  }
  clear_outputs(args, i);
  if (yields) {
    for (int32_t warp = 1; warp < kMaximaThreads / 32; ++warp) {
      largest.take(of_warps[warp]);
    }
    RowFacts facts{};
    facts.raw_max = largest.value;
    facts.max = largest.value;
    facts.argmax = largest.output;
    write_token(args, RowPlan{}, i, facts);
  }
}

// Formula: cuts, draw or verification, and logprobs in the order of sample.h.
// Shapes: as above; logits [n, vocab] f32, group maxima [n, tiles * 256].
// Mapping: a CTA per row. It reads only groups with a large maximum. A top_k up to kListTopK is sorted in
//   shared memory. Other cuts test the scan's draw; where the test fails, they draw again from fewer tokens
//   (draw.cuh).
// Bytes moved: 4 per 32 tokens and the groups of large logits; in the worst case the row several times.
// Numerics: masses in units of 2^-31 summed as integers, scores and logprobs in double: the same in every run
//   and batch.
// Preconditions: runs after scan. Origin: own.
__global__ void __launch_bounds__(kFinishThreads, 1) finish_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  __shared__ FinishShared shared;
  __shared__ VerifyShared verify_shared;
  __shared__ RowFacts row_shared;
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.x;
  const RowPlan plan = plan_row(args, args.rules, i);
  if (threadIdx.x == 0) {
    clear_outputs(args, i);
  }
  if (plan.row < 0) {
    return;
  }
  if (threadIdx.x < 32) {
    const RowFacts facts =
        row_facts(scratch.tiles + i * scratch.num_tiles, scratch.num_tiles, plan);
    if (threadIdx.x == 0) {
      row_shared = facts;
      write_token(args, plan, i, facts);
    }
  }
  __syncthreads();
  const RowFacts facts = row_shared;
  if (facts.bad()) {
    return;
  }
  const int64_t groups = static_cast<int64_t>(scratch.num_tiles) * kTileThreads;
  const int64_t vocab = args.logits.shape[1];
  int32_t token = args.given.empty() ? facts.argmax : args.given(i);
  const float* x = plan.changed() && plan.kept() ? scratch.changed + i * scratch.changed_stride
                                                 : args.logits.row(i);
  const SearchRow row{LogitRow(x, vocab),
                      scratch.group_max + i * groups,
                      static_cast<int32_t>(groups),
                      plan.divisor,
                      facts.max,
                      facts.max / plan.divisor};
  if (plan.draft >= 0) {
    const int32_t argmax = plan.cut() ? facts.argmax : -1;
    const RowMasses masses{row, last_survivor(shared.search, row, plan), argmax};
    token = verify_draft(verify_shared, masses, args, plan, i);
  } else if (plan.cut()) {
    token = draw_cut(shared,
                     row,
                     plan,
                     draw_key(args, plan),
                     scratch.tiles + i * scratch.num_tiles,
                     scratch.masses + i * scratch.num_tiles,
                     facts.argmax,
                     facts.scaled_sum);
  } else if (plan.random) {
    token = facts.drawn;
  }
  if (threadIdx.x == 0) {
    args.sampled(i) = token;
  }
  if (!plan.logprobs) {
    return;
  }
  const SearchRow raw{LogitRow(args.logits.row(i), vocab),
                      scratch.raw_group_max + i * groups,
                      static_cast<int32_t>(groups),
                      1.0F,
                      facts.raw_max,
                      facts.raw_max};
  write_logprobs(shared.search, args, plan, i, raw, facts.lse, token);
}

}  // namespace

void launch_maxima(Stream& stream, const SampleArgs& args) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.maxima.shape[0]));
  shape.block = dim3(kMaximaThreads);
  launch(stream, "sample_maxima", shape, maxima_kernel, args);
}

void launch_finish(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  const int64_t n = args.logits.shape[0];
  LaunchShape shape;
  const bool decided = (args.rules & (kSampleCut | kSampleLogprobs)) == 0 && args.draft_at.empty();
  if (decided) {  // by the scan
    shape.grid = dim3(static_cast<unsigned>((n + kPlainRows - 1) / kPlainRows));
    shape.block = dim3(kPlainRows * 32);
    launch(stream, "sample_finish_plain", shape, finish_plain_kernel, args, scratch);
    return;
  }
  shape.grid = dim3(static_cast<unsigned>(n));
  shape.block = dim3(kFinishThreads);
  launch(stream, "sample_finish", shape, finish_kernel, args, scratch);
}

}  // namespace warprow::cuda
