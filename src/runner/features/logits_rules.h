// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/logits_rule.h"
#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Rules of the engine's owner on the rows' logits, at least one. The device is a CPU.
//
// A step enqueues nothing for them if no rule can matter to any of its rows.
std::unique_ptr<RunnerFeature> make_logits_rules(const RunnerParts& parts,
                                                 const LogitsRules& rules);

}  // namespace warprow
