// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "runner/features/feature.h"

#include <memory>

namespace warprow {

// Copies blocks of the KV cache before a step's forward (SchedulerOutput::block_copies), in all layers that the rank has.
// On a CPU, where a copy from host memory is one within the device's; a GPU computes such tokens again, which costs a
// step little.
std::unique_ptr<RunnerFeature> make_block_copies(const RunnerParts& parts);

}  // namespace warprow
