// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "comm/rank_place.h"
#include "config/engine_config.h"
#include "device/device.h"

#include <string>
#include <vector>

namespace warprow {

// A rank's device, as ranks tell each other before they load.
std::string describe_rank_device(const DeviceFacts& facts);

// Refuses ranks on several kinds of devices: they would wait for the slowest one, and would not compute the same bits.
// devices: describe_rank_device of each rank, by rank.
Result<void> check_rank_devices(const std::vector<std::string>& devices);

// Refuses --device cuda of one of several ranks whose GPU cannot be used, for this reason; "" if it can.
Result<void> check_gpu(const EngineConfig& config,
                       const RankPlace& place,
                       const std::string& why_no_cuda);

// Refuses a --rank-transport that is not for this device, "cpu" or "cuda".
Result<void> check_transport(const EngineConfig& config, const std::string& device);

}  // namespace warprow
