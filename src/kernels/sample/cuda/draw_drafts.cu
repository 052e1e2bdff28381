// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/cuda/verify_draft.cuh"
#include "kernels/sample/draw_drafts.h"
#include "kernels/sample/sample.h"

namespace warprow::cuda {
namespace {

constexpr int32_t kPositionThreads = 128;

// positions[i]: of the input token of row i's logits.
__global__ void __launch_bounds__(kPositionThreads) draft_positions_kernel(
    const __grid_constant__ DrawDraftsArgs args, int32_t* positions) {
  pdl_wait();
  pdl_release();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kPositionThreads + threadIdx.x;
  if (i < args.logits.shape[0] && args.row(i) >= 0) {
    positions[i] = args.total_len[args.row(i) * args.state_stride] - 1 + args.number;
  }
}

struct ProbsShared {
  SearchShared search;
  BlockSums sums;
};

// Formula: the draft by the model's ids, and for random rows q (draw_drafts.h).
// Shapes: tokens drawn.sampled [n]; probs [places, width] f32.
// Mapping: a CTA per row. Bytes moved: the row three times with a cut under top_k alone, else twice; more under top_p; q once.
// Numerics: masses to float precision, summed in double in a fixed order.
// Preconditions: runs after sample of the same rows. Origin: own.
__global__ void __launch_bounds__(kFinishThreads, 1) draft_probs_kernel(
    const __grid_constant__ DrawDraftsArgs args,
    const __grid_constant__ SampleArgs drawn,
    const SampleScratch scratch) {
  __shared__ ProbsShared shared;
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.x;
  const RowPlan plan = plan_row(drawn, drawn.rules, i);
  if (plan.row < 0) {
    return;
  }
  const int32_t token = drawn.sampled(i);
  const int64_t place = int64_t{plan.row} * args.max_drafts + args.number;
  if (threadIdx.x == 0) {
    const int32_t* const ids = args.drafts.ids;
    args.drafts.tokens[place] = token < 0 ? -1 : ids == nullptr ? token : ids[token];
  }
  if (token < 0 || !plan.random) {
    return;
  }
  const int64_t width = args.logits.shape[1];
  const int32_t groups = scratch.num_tiles * kTileThreads;
  float max_logit = -kInfinity;
  int32_t argmax = -1;
  for (int32_t t = 0; t < scratch.num_tiles; ++t) {
    const TileResult& tile = scratch.tiles[i * scratch.num_tiles + t];
    argmax = tile.max > max_logit ? tile.argmax : argmax;
    max_logit = fmaxf(max_logit, tile.max);
  }
  const SearchRow row{LogitRow(args.logits.row(i), width),
                      scratch.group_max + i * groups,
                      groups,
                      plan.divisor,
                      max_logit,
                      plan.divisor == 1.0F ? max_logit : max_logit / plan.divisor};
  const RowMasses masses{row, last_survivor(shared.search, row, plan), plan.cut() ? argmax : -1};
  const double total = total_mass(shared.sums, masses);
  float* const probs = args.drafts.probs + place * args.drafts.width;
  for (int64_t id = threadIdx.x; id < width; id += kFinishThreads) {
    const float mass = masses.of(row.logits.x[id], static_cast<int32_t>(id));
    probs[id] = static_cast<float>(static_cast<double>(mass) / total);
  }
}

}  // namespace

// The drafts are drawn by sample, for which these are rows without rules on tokens.
void draw_drafts(Stream& stream, const DrawDraftsArgs& args) {
  const int64_t n = args.logits.shape[0];
  const int64_t width = args.logits.shape[1];
  WR_CHECK_EQ(args.row.shape[0], n);
  WR_CHECK_EQ(args.drafts.width, width);
  WR_CHECK_LT(args.number, args.max_drafts);
  if (n == 0) {
    return;
  }
  WR_CHECK_GE(args.scratch.shape[0], static_cast<int64_t>(sample_scratch_bytes(width, n)));
  const SampleScratch scratch = cut_sample_scratch(args.scratch.data, width, n);
  launch(stream,
         "draft_positions",
         {dim3(static_cast<unsigned>((n + kPositionThreads - 1) / kPositionThreads)),
          dim3(kPositionThreads)},
         draft_positions_kernel,
         args,
         scratch.drafts.positions);
  SampleArgs draw;
  draw.logits = args.logits;
  draw.logit_row = args.row;
  draw.logit_pos = make_view<const int32_t>(scratch.drafts.positions, n);
  draw.params = args.params;
  draw.sampled = make_view(scratch.drafts.tokens, n);
  draw.logprob = make_view(scratch.drafts.logprobs, n);
  draw.rank = make_view(scratch.drafts.ranks, n);
  draw.top_ids = make_view(scratch.drafts.tokens, n, 0);
  draw.top_logprobs = make_view(scratch.drafts.logprobs, n, 0);
  draw.error = make_view(scratch.drafts.errors, n);
  draw.purpose = RandomPurpose::kDraft;
  draw.scratch = args.scratch;
  draw.rules = kSampleRandom | kSampleCut;
  cuda::sample(stream, draw);
  launch(stream,
         "draft_probs",
         {dim3(static_cast<unsigned>(n)), dim3(kFinishThreads)},
         draft_probs_kernel,
         args,
         draw,
         scratch);
}

}  // namespace warprow::cuda
