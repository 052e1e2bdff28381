// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/speculation.h"
#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// A proposer: suffix decoding over each row's own tokens and over the latest outputs of all requests
// (runner/drafts/suffix_search.h). CPU only. It runs on the last stage of a pipeline, which sends the drafts to the others.
std::unique_ptr<RunnerFeature> make_suffix_drafts(const RunnerParts& parts,
                                                  const Speculation& speculation);

}  // namespace warprow
