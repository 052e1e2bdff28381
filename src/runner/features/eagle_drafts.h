// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"
#include "runner/features/model_drafts.h"

#include <cstdint>
#include <memory>

namespace warprow {

// The most tokens of one of its own forwards.
[[nodiscard]] int32_t most_head_toks(int32_t max_num_seqs, int32_t num_drafts);

// A proposer: the most likely tokens of a head (models/eagle_head.h), one forward for each. Its keys and values are in
// groups of the same pool, under the same block tables and prefix hashes.
//
// Keys and values of accepted tokens come from the model's states: a step with prompt tokens is also a step of the
// head, and the first forward behind a step takes the positions that the step accepted. It overwrites what drafting
// left there.
std::unique_ptr<RunnerFeature> make_eagle_drafts(const RunnerParts& parts, const DraftModel& draft);

}  // namespace warprow
