// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/sample.h"

namespace warprow {

void check_sample_shapes(const SampleArgs& args) {
  const int64_t n = args.logits.shape[0];
  const bool given = !args.given.empty();
  WR_CHECK(!given || !is_processed(args.logprobs_mode));
  for (const int64_t size : {given ? args.given.shape[0] : args.logit_row.shape[0],
                             given ? n : args.logit_pos.shape[0],
                             args.sampled.shape[0],
                             args.logprob.shape[0],
                             args.rank.shape[0],
                             args.top_ids.shape[0],
                             args.top_logprobs.shape[0],
                             args.error.shape[0]}) {
    WR_CHECK_EQ(size, n);
  }
  WR_CHECK_EQ(args.top_ids.shape[1], args.top_logprobs.shape[1]);
  WR_CHECK_GT(args.logits.shape[1], 0);
}

}  // namespace warprow
