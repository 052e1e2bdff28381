// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Structured output: before a step's tokens are drawn, the masks that sample_tokens got are laid
// into pinned memory, and the head of the sample graph applies them in place
// (kernels/sample/grammar_mask.h).
std::unique_ptr<RunnerFeature> make_grammar_masks(const RunnerParts& parts);

}  // namespace warprow
