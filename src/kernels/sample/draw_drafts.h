// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/check.h"
#include "device/view.h"
#include "kernels/op.h"
#include "kernels/sample/draft_probs.h"
#include "kernels/sample/sample_params.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Draws one draft for each row from a drafter's logits, and keeps the distribution that it was drawn from.
//
// Formula: q = softmax of the logits divided by the row's temperature, over the tokens that survive its min_p, top_k and
//   top_p; the draft is drawn from q with the purpose kDraft at the position of its logits' input token. Rules on tokens do
//   not apply. Greedy rows: the largest logit, lowest id at ties; nothing is kept.
// Shapes: logits [n, width] (any row stride); row [n] indexes params and total_len, negative: no draft is made; drafts:
//   written at row * max_drafts + number.
// Mapping: CPU: rows in parallel, lanes along the vocabulary. CUDA: as sample, then a CTA per row that writes q.
// Bytes moved: as sample (sample.h), and one pass that writes q.
// Numerics: a row's draft depends on that row alone. q is a float of terms summed in double.
// Preconditions: as of sample; scratch has sample_scratch_bytes. Logits with a NaN or without a finite maximum: draft -1.
// Origin: as sample's.
struct DrawDraftsArgs {
  View<const float, 2> logits;
  View<const int32_t, 1> row;
  View<const SampleParams, 1> params;
  const int32_t* total_len =
      nullptr;  // known tokens of row 0; row i's are i * state_stride further
  int64_t state_stride = 1;
  int32_t number = 0;  // of the draft, from 0
  int32_t max_drafts = 0;
  DraftProbs drafts;
  View<std::byte, 1> scratch;
};

WR_OP(draw_drafts, DrawDraftsArgs);

}  // namespace warprow
