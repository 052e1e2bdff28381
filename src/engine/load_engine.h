// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "config/logits_rule.h"
#include "engine/engine.h"

#include <memory>

namespace warprow {

// As load_engine, for an engine with rules of its owner on logits; they outlive it. Throws StartupError, also for a GPU
// or several ranks, whose logits are not in this process.
std::unique_ptr<Engine> load_ruled_engine(const EngineConfig& config, const LogitsRules& rules);

}  // namespace warprow
