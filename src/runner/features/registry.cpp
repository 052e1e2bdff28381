// SPDX-License-Identifier: Apache-2.0
#include "models/model.h"
#include "runner/features/block_copies.h"
#include "runner/features/eagle_drafts.h"
#include "runner/features/feature.h"
#include "runner/features/grammar_masks.h"
#include "runner/features/hidden_states.h"
#include "runner/features/lora.h"
#include "runner/features/model_drafts.h"
#include "runner/features/ngram_drafts.h"
#include "runner/features/pooling.h"
#include "runner/features/prompt_embeds.h"
#include "runner/features/prompt_logprobs.h"
#include "runner/features/ratio_acceptance.h"
#include "runner/features/slot_check.h"
#include "runner/features/state_drafts.h"
#include "runner/features/step_times.h"
#include "runner/features/suffix_drafts.h"
#include "runner/features/synthetic_acceptance.h"

#include <algorithm>

namespace warprow {

std::vector<std::unique_ptr<RunnerFeature>> make_features(const RunnerParts& parts,
                                                          const FeatureOptions& options) {
  std::vector<std::unique_ptr<RunnerFeature>> features;
  features.push_back(make_step_times(parts));
  if (parts.head != nullptr) {
    features.push_back(make_grammar_masks(parts));
    features.push_back(make_prompt_logprobs(parts));
  }
  if (options.hidden_states && parts.head != nullptr) {
    features.push_back(make_hidden_states(parts));
  }
  if (options.pooler != nullptr && parts.head != nullptr) {
    features.push_back(make_pooling(parts, *options.pooler));
  }
  if (options.block_copies) {
    features.push_back(make_block_copies(parts));
  }
  if (options.lora.max_loras > 0) {
    features.push_back(make_lora(parts, options.lora));
  }
  if (options.prompt_embeds && parts.model->facts().first_stage) {
    features.push_back(make_prompt_embeds(parts));
  }
  if (options.speculation.synthetic_acceptance > 0 && parts.head != nullptr) {
    features.push_back(make_synthetic_acceptance(parts, options.speculation.synthetic_acceptance));
  }
  if (options.speculation.ratio && options.draft_model != nullptr) {
    features.push_back(make_ratio_acceptance(parts, *options.draft_model));
  }
  const auto has_state = [](const KvGroupSpec& group) { return group.state_pages > 0; };
  if (parts.limits.max_drafts > 0 && parts.sampler != nullptr &&
      std::ranges::any_of(parts.groups, has_state)) {
    features.push_back(make_state_drafts(parts));
  }
  if (options.speculation.method == Speculation::Method::kNgram && parts.head != nullptr) {
    features.push_back(make_ngram_drafts(parts, options.speculation));
  }
  if (options.speculation.method == Speculation::Method::kSuffix && parts.head != nullptr) {
    features.push_back(make_suffix_drafts(parts, options.speculation));
  }
  if (options.draft_model != nullptr) {
    features.push_back(options.draft_model->head != nullptr
                           ? make_eagle_drafts(parts, *options.draft_model)
                           : make_model_drafts(parts, *options.draft_model));
  }
  for (const FeatureFactory& make : options.extra) {
    features.push_back(make(parts));
  }
  // Checks come last, so that they see the step as all other features left it.
  if (options.debug_checks) {
    features.push_back(make_slot_check(parts));
  }
  return features;
}

}  // namespace warprow
