// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/cpu/verify_draft.h"

#include "base/philox.h"
#include "kernels/sample/rules/ratio.h"

namespace warprow::cpu {
namespace {

// The probability with which the drafter drew a token of the model.
double prob_of(const DraftProbs& drafts, const float* probs, int32_t token) {
  return static_cast<double>(probs[drafts.own_ids == nullptr ? token : drafts.own_ids[token]]);
}

void subtract_draft(const DraftCheck& check, const float* probs) {
  const int32_t* const ids = check.drafts.ids;
  for (int64_t i = 0; i < check.drafts.width; ++i) {
    float& mass = check.mass[ids == nullptr ? i : ids[i]];
    mass = remaining_mass(mass, check.total, static_cast<double>(probs[i]));
  }
}

// A token drawn from check.mass, or -1 if all of it is 0.
int32_t draw_by_mass(const DraftCheck& check) {
  double sum = 0.0;
  for (int32_t id = 0; id < check.n; ++id) {
    sum += static_cast<double>(check.mass[id]);
  }
  const RandomKey key{check.seed, check.position, RandomPurpose::kRecover};
  const double target = uniform_open(random_bits(key, 0)) * sum;
  int32_t last = -1;
  double reached = 0.0;
  for (int32_t id = 0; id < check.n && (last < 0 || reached <= target); ++id) {
    reached += static_cast<double>(check.mass[id]);
    last = check.mass[id] > 0.0F ? id : last;
  }
  return last;
}

}  // namespace

int32_t verify_draft(const DraftCheck& check) {
  const DraftProbs& drafts = check.drafts;
  const int32_t draft = drafts.tokens[check.place];
  const float* const probs = drafts.probs + check.place * drafts.width;
  const RandomKey key{check.seed, check.position, RandomPurpose::kAccept};
  if (accepts_draft(check.mass[draft], check.total, prob_of(drafts, probs, draft), key)) {
    return draft;
  }
  subtract_draft(check, probs);
  const int32_t other = draw_by_mass(check);
  return other < 0 ? draft : other;  // p and q differ by rounding alone
}

}  // namespace warprow::cpu
