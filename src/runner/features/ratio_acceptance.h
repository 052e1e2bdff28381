// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

struct DraftModel;

// Drafts of a model or a head are drawn, their distributions are kept, and the sampler verifies the drafts by ratio
// (kernels/sample/rules/ratio.h). Workspace: f32 [max_num_seqs * max_drafts, vocabulary of the drafter].
std::unique_ptr<RunnerFeature> make_ratio_acceptance(const RunnerParts& parts,
                                                     const DraftModel& drafter);

}  // namespace warprow
