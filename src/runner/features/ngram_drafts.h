// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/speculation.h"
#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// A proposer: after every step each row's drafts are the tokens that followed an earlier occurrence of its last tokens
// (runner/ops/propose_ngram.h). It runs on the last stage of a pipeline, which sends the drafts to the others.
std::unique_ptr<RunnerFeature> make_ngram_drafts(const RunnerParts& parts,
                                                 const Speculation& speculation);

}  // namespace warprow
