// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "executor/external/launch.h"
#include "executor/mp/rank_main.h"

namespace warprow {

// The whole life of a rank other than 0 that a launcher started: it joins the others, builds its part of the model and
// runs the steps that rank 0's executor sends, until told to stop. SIGINT and SIGTERM reach all ranks; rank 0 then lets
// its requests end, so this one goes on for a while.
//
// Throws StartupError if it cannot start, or if it or another rank has failed. The caller then ends the process. If the
// process still lives two seconds after a failure, since its device waits for other ranks, a thread ends it.
void run_external_rank(const EngineConfig& config, const Launch& launch, const WrapRank& wrap = {});

}  // namespace warprow
