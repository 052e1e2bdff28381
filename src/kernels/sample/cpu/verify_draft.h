// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/sample/draft_probs.h"

#include <cstdint>

namespace warprow::cpu {

struct DraftCheck {
  DraftProbs drafts;
  int32_t place;  // of the draft, whose token is in [0, n)
  float* mass;    // [n]  of the tokens that survive the rules; overwritten
  int32_t n;
  double total;  // of mass; > 0
  uint64_t seed;
  uint32_t position;  // of the logits' input token
};

// The draft, if it is accepted, else the token that replaces it: rules/ratio.h. That is the first one with which the sum of
// the remaining masses, by id, exceeds a uniform part of all of them.
int32_t verify_draft(const DraftCheck& check);

}  // namespace warprow::cpu
