// SPDX-License-Identifier: Apache-2.0
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/cuda/row_search.cuh"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/cuda/token_rules.cuh"
#include "kernels/sample/sample.h"

namespace warprow::cuda {
namespace {

constexpr int32_t kThreads = 512;

// Formula: bit id of mask(row) = id occurs in the row's prompt.
// Shapes: mask [n, mask_words] u32; not written for rows without a repetition penalty.
// Mapping: a CTA per row, its mask in shared memory, prompt tokens over the threads.
// Bytes moved: the prompt once, possibly over PCIe; vocab / 8 bytes written.
__global__ void __launch_bounds__(kThreads) prompt_mask_kernel(
    const __grid_constant__ SampleArgs args, const SampleScratch scratch, uint32_t rules) {
  extern __shared__ uint32_t mask[];
  pdl_wait();
  pdl_release();
  const int64_t i = blockIdx.x;
  const RowPlan plan = plan_row(args, rules, i);
  if (plan.row < 0 || !needs_prompt(args, plan)) {
    return;
  }
  for (int32_t w = static_cast<int32_t>(threadIdx.x); w < scratch.mask_words; w += kThreads) {
    mask[w] = 0;
  }
  __syncthreads();
  const KnownTokens tokens = known_tokens(args.tokens, plan.row, plan.position);
  const int32_t end = min(tokens.prompt_len, tokens.len);
  for_each_token<kThreads>(tokens, 0, end, [&](int32_t id) {
    if (id >= 0 && id < args.logits.shape[1]) {
      atomicOr(&mask[id / 32], 1U << (id % 32));
    }
  });
  __syncthreads();
  uint32_t* const out = scratch.prompt_mask + i * scratch.mask_words;
  for (int32_t w = static_cast<int32_t>(threadIdx.x); w < scratch.mask_words; w += kThreads) {
    out[w] = mask[w];
  }
}

// Makes the bit mask of the tokens in a row's prompt; with kSamplePenalties.
void launch_prompt_mask(Stream& stream, const SampleArgs& args, const SampleScratch& scratch) {
  LaunchShape shape;
  shape.grid = dim3(static_cast<unsigned>(args.logits.shape[0]));
  shape.block = dim3(kThreads);
  shape.shared_bytes = static_cast<size_t>(scratch.mask_words) * sizeof(uint32_t);
  launch(stream, "sample_prompt_mask", shape, prompt_mask_kernel, args, scratch, args.rules);
}

}  // namespace

// Many CTAs read the logits once; then one CTA per row does the rest. Maxima are of logits that the head has read.
void sample(Stream& stream, const SampleArgs& args) {
  const int64_t n = args.logits.shape[0];
  const int64_t vocab = args.logits.shape[1];
  check_sample_shapes(args);
  if (!args.maxima.empty()) {
    launch_maxima(stream, args);
    return;
  }
  WR_CHECK_LE(args.top_ids.shape[1], kMaxKeys / 2);
  WR_CHECK_EQ(args.logits.stride[1], 1);
  WR_CHECK_LE(vocab, kMaxVocab);
  WR_CHECK_GE(args.scratch.shape[0], static_cast<int64_t>(sample_scratch_bytes(vocab, n)));
  if (n == 0) {
    return;
  }
  const SampleScratch scratch = cut_sample_scratch(args.scratch.data, vocab, n);
  if ((args.rules & kSamplePenalties) != 0 && !args.tokens.empty()) {
    launch_prompt_mask(stream, args, scratch);
  }
  launch_scan(stream, args, scratch);
  if ((args.rules & kSampleCut) != 0) {
    launch_mass(stream, args, scratch);
  }
  launch_finish(stream, args, scratch);
  if ((args.rules & kSampleLogprobs) != 0 && is_processed(args.logprobs_mode)) {
    launch_processed(stream, args, scratch);
  }
}

}  // namespace warprow::cuda
