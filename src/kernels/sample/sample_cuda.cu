// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/row_search_cuda.cuh"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_stages_cuda.h"

namespace warprow::cuda {

// Many CTAs read the logits once; then one CTA per row does the rest.
void sample(Stream& stream, const SampleArgs& args) {
  const int64_t n = args.logits.shape[0];
  const int64_t vocab = args.logits.shape[1];
  check_sample_shapes(args);
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
