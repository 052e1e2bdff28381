// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Device times of a few steps, when somebody asks for them: from a step's first kernel behind its
// upload to its last. What lies between two steps then is time in which the device waited.
//
// Operations: time_steps (argument: how many of the next steps; forgets those before; does nothing on
// a CPU) and step_times (waits for the last of them; JSON [[begin, end], ...] in microseconds since
// the first begin).
std::unique_ptr<RunnerFeature> make_step_times(const RunnerParts& parts);

}  // namespace warprow
