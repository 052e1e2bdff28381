// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/sample/cuda/logprobs.cuh"
#include "kernels/sample/cuda/stages.h"

namespace warprow::cuda {
namespace {

struct ProcessedShared {
  SearchShared search;
  BlockSums sums;
};

// The maximum over all threads of the CTA, returned to every thread.
__device__ float block_max(ProcessedShared& shared, float mine) {
  const uint32_t bits = __reduce_max_sync(~0U, ordered(mine));
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.search.sum = 0;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    atomicMax(&shared.search.sum, static_cast<unsigned long long>(bits));
  }
  __syncthreads();
  return from_ordered(static_cast<uint32_t>(shared.search.sum));
}

// Writes rule(value, id) of every token to `out`, which may be x, and the maxima of its groups. Returns the
// maximum.
template <typename Rule>
__device__ float rewrite(ProcessedShared& shared,
                         const LogitRow& x,
                         float* out,
                         float* group_max,
                         int32_t num_groups,
                         const Rule& rule) {
  float max = -kInfinity;
  for (auto g = static_cast<int32_t>(threadIdx.x); g < num_groups; g += kFinishThreads) {
    float mine = -kInfinity;
    for (int32_t part = 0; part < kTileParts; ++part) {
      const int32_t id = g / kTileThreads * kTileTokens + part * kPartTokens + g % kTileThreads * 4;
      if (id >= x.vocab) {
        break;
      }
      const float4 v = x.four(id);
      const float4 to{rule(v.x, id), rule(v.y, id + 1), rule(v.z, id + 2), rule(v.w, id + 3)};
      *reinterpret_cast<float4*>(out + id) = to;  // the row's stride is padded to four
      mine = fmaxf(mine, fmaxf(fmaxf(to.x, to.y), fmaxf(to.z, to.w)));
    }
    group_max[g] = mine;
    max = fmaxf(max, mine);
  }
  return block_max(shared, max);
}

// Formula: logprobs.h, of the row as the draw saw it: divided by the temperature, -inf for tokens that did
//   not survive. The drawn token always survives, even if the rounding of masses excludes it.
// Shapes: as for finish; the row is built in scratch.changed.
// Mapping: a CTA per row. Bytes moved: the row several times; up to 60 times under top_p.
// Numerics: as for finish. Preconditions: runs after finish. Origin: own.
__global__ void __launch_bounds__(kFinishThreads, 1) processed_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch) {
  __shared__ ProcessedShared shared;
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.x;
  const RowPlan plan = plan_row(args, args.rules, i);
  if (plan.row < 0 || !plan.processed || args.sampled(i) < 0) {
    return;
  }
  const int32_t token = args.sampled(i);
  const int64_t vocab = args.logits.shape[1];
  const int32_t groups = scratch.num_tiles * kTileThreads;
  float* const out = scratch.changed + i * scratch.changed_stride;
  float* const group_max = scratch.group_max + static_cast<int64_t>(i) * groups;
  const LogitRow from(plan.changed() ? out : args.logits.row(i), vocab);
  const bool divide = plan.random && plan.divisor != 1.0F;
  const float max = rewrite(shared, from, out, group_max, groups, [&](float x, int32_t) {
    return divide ? x / plan.divisor : x;
  });
  __syncthreads();
  SearchRow row{LogitRow(out, vocab), group_max, groups, 1.0F, max, max};
  if (plan.cut()) {
    const TokenKey last = last_survivor(shared.search, row, plan);
    __syncthreads();
    rewrite(shared, row.logits, out, group_max, groups, [&](float x, int32_t id) {
      return token_key(x, id) <= last || id == token ? x : -kInfinity;
    });
    __syncthreads();
  }
  double sum = 0.0;
  for (int64_t id = threadIdx.x; id < vocab; id += kFinishThreads) {
    sum += exp(static_cast<double>(out[id]) - max);
  }
  const double lse = max + log(block_sum(shared.sums, sum));
  write_logprobs(shared.search, args, plan, i, row, lse, token);
}

}  // namespace

void launch_processed(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.logits.shape[0]));
  shape.block = dim3(kFinishThreads);
  launch(stream, "sample_processed", shape, processed_kernel, args, scratch);
}

}  // namespace warprow::cuda
