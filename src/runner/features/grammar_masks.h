// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Structured output: before a step's tokens are drawn, the masks passed to sample_tokens are copied to pinned
// memory. The first kernel of the sample graph applies them in place (kernels/sample/grammar_mask.h).
std::unique_ptr<RunnerFeature> make_grammar_masks(const RunnerParts& parts);

}  // namespace warprow
