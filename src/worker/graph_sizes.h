// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/resolve.h"
#include "runner/graphs/graph_plan.h"

#include <cstdint>

namespace warprow {

// Which graphs the settings ask for, and the room that is set aside for them. The user's sizes are
// checked even where nothing is captured.
Result<GraphOptions> decide_graphs(const ResolvedConfig& config, int32_t num_layers);

}  // namespace warprow
