// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/engine_config.h"
#include "config/logits_rule.h"
#include "executor/executor.h"
#include "worker/model_plan.h"
#include "worker/rank.h"

#include <memory>

namespace warprow {

// The executor for a configuration: in this process for one device, else a process for each rank. Loads the model.
// Throws StartupError. rules: only for one rank on a CPU in this process, else kUnsupported.
std::unique_ptr<Executor> make_executor(const EngineConfig& config, const LogitsRules& rules = {});

// A process for each rank of the configuration, on this host.
std::unique_ptr<Executor> make_mp_executor(const EngineConfig& config);

// One rank in this process, on the caller's device. comms: of a rank among several. Tests pass devices whose streams defer,
// shuffle or guard.
std::unique_ptr<Executor> make_uniproc_executor(ModelPlan plan,
                                                std::unique_ptr<Device> device,
                                                const RankComms& comms = {});

}  // namespace warprow
