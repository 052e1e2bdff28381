// SPDX-License-Identifier: Apache-2.0
#include "runner/features/feature.h"
#include "runner/features/forward_mark.h"
#include "runner/features/grammar_masks.h"
#include "runner/features/hidden_states.h"
#include "runner/features/prompt_logprobs.h"
#include "runner/features/slot_check.h"
#include "runner/features/step_times.h"

namespace warprow {

std::vector<std::unique_ptr<RunnerFeature>> make_features(const FeatureSetup& setup) {
  std::vector<std::unique_ptr<RunnerFeature>> features;
  if (setup.step_times != nullptr) {
    features.push_back(make_step_timing(*setup.step_times));
  }
  features.push_back(make_forward_marks(*setup.forward_mark));
  features.push_back(make_grammar_masks(setup));
  features.push_back(make_prompt_logprobs(setup));
  if (setup.hidden_bytes > 0) {
    features.push_back(make_hidden_states(setup));
  }
  // Checks come last, so that they see what every other feature made of the step.
  if (setup.debug_checks) {
    features.push_back(make_slot_check(setup));
  }
  return features;
}

}  // namespace warprow
