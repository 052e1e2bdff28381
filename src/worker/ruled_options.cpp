// SPDX-License-Identifier: Apache-2.0
#include "worker/ruled_options.h"

#include "runner/features/logits_rules.h"

namespace warprow {

RunnerOptions ruled_options(const LogitsRules& rules) {
  RunnerOptions options;
  if (!rules.empty()) {
    options.features.extra.emplace_back(
        [rules](const RunnerParts& parts) { return make_logits_rules(parts, rules); });
  }
  return options;
}

}  // namespace warprow
