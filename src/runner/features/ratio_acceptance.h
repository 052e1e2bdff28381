// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

struct DraftModel;

// Drafts of a model or a head are drawn, their distributions kept, and both verified by ratio (kernels/sample/rules/ratio.h).
// Takes f32 [max_num_seqs * max_drafts, tokens of the drafter].
std::unique_ptr<RunnerFeature> make_ratio_acceptance(const RunnerParts& parts,
                                                     const DraftModel& drafter);

}  // namespace warprow
