// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Of a model with layers that keep a state: takes the accepted drafts of a step into the states (Model::take_drafts), as soon
// as the sampler has verified them. So with any proposer, every step finds states that include all computed tokens.
std::unique_ptr<RunnerFeature> make_state_drafts(const RunnerParts& parts);

}  // namespace warprow
