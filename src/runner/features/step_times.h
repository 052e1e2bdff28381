// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Device times of a few steps, on request: from a step's first kernel after its upload to its last. The gap between
// two steps is time in which the device was idle.
//
// Operations: time_steps (argument: the number of next steps to time; drops earlier times; does nothing on a CPU)
// and step_times (waits for the last timed step; returns JSON [[begin, end], ...] in microseconds since the first
// begin).
std::unique_ptr<RunnerFeature> make_step_times(const RunnerParts& parts);

}  // namespace warprow
