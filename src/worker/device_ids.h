// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "config/engine_config.h"

#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// The numbers in a list such as "0,2". kInvalidArgument for anything else, and for a number that is there twice.
Result<std::vector<int32_t>> parse_device_ids(const std::string& text);

// The GPU of the nth of `num_ranks` ranks that see the same GPUs, as a number among those: the nth of
// EngineConfig::device_ids, or n where these are not given. Does not ask the driver. kInvalidArgument: the list is
// wrong, is not as long as there are ranks, or the device is the CPU.
Result<int32_t> device_ordinal(const EngineConfig& config, int32_t nth, int32_t num_ranks);

// Refuses device_ids of a rank that runs on a CPU, because there is no such GPU or it cannot be used. `device` is what
// the plan decided, why_no_cuda as in MachineFacts.
Result<void> check_device(const EngineConfig& config,
                          const std::string& device,
                          const std::string& why_no_cuda);

}  // namespace warprow
