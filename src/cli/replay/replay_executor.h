// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/replay/recorded_run.h"
#include "cli/replay/used_ids.h"
#include "config/load_config.h"
#include "executor/executor.h"

#include <memory>

namespace warprow {

// An executor with the model, the settings and the sizes of the recorded run. Settings that the user gives count more.
// Notes if the weights or the attention backends are others. Errors: a model that is not there; sizes that the recorded
// steps do not fit. Throws StartupError.
Result<std::unique_ptr<Executor>> make_replay_executor(const RecordedRun& run,
                                                       const UsedIds& used,
                                                       const LoadedConfig& given);

}  // namespace warprow
