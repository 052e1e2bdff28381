// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/logits_rule.h"
#include "runner/model_runner.h"

namespace warprow {

// What plan_model takes for a rank whose engine has these rules. Without rules nothing is added.
RunnerOptions ruled_options(const LogitsRules& rules);

}  // namespace warprow
