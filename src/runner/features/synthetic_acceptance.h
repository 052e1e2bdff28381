// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// For measurements of speed: drafts are accepted with a given probability each. Answers mean nothing then.
std::unique_ptr<RunnerFeature> make_synthetic_acceptance(const RunnerParts& parts,
                                                         double acceptance);

}  // namespace warprow
