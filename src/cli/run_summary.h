// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"

#include <cstdint>
#include <string>

namespace warprow {

// "128 tokens in 1.92 s, 66.7 tokens/s".
std::string speed_text(int64_t num_tokens, double seconds);

// "steps 129, mixed_steps 0, …": every counter on one line.
std::string stats_text(const EngineStats& stats);

// Prints the summary of a run on stderr: the speed, and with `with_stats` the counters.
void print_summary(int64_t num_tokens, double seconds, const EngineStats& stats, bool with_stats);

}  // namespace warprow
