// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/resolve.h"
#include "runner/graphs/graph_plan.h"

#include <cstdint>

namespace warprow {

// The graphs that the settings select, and the memory reserved for them. The user's sizes are checked even if
// nothing is captured. draft_layers: of all forwards of a draft model, which are recorded with the sampling.
Result<GraphOptions> decide_graphs(const ResolvedConfig& config,
                                   int32_t num_layers,
                                   int32_t draft_layers = 0);

}  // namespace warprow
