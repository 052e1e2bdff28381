// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

#include <memory>

namespace warprow {

// A device that reports these facts and runs nothing: its streams drop every operation, its arenas are addresses
// that must not be dereferenced, its pinned buffers are empty. Building an engine's parts on it only moves the
// arenas' marks and counts pinned bytes. This plans memory, also for another machine.
std::unique_ptr<Device> make_shape_only_device(const DeviceFacts& facts);

}  // namespace warprow
