// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

#include <memory>

namespace warprow {

// A device that pretends to be the one with these facts and runs nothing: its streams drop every
// operation, its arenas are addresses that nobody may follow, its pinned buffers are empty. Building
// an engine's parts on it only moves the arenas' marks and counts pinned bytes, which is how memory
// is planned for a machine that need not be there.
std::unique_ptr<Device> make_shape_only_device(const DeviceFacts& facts);

}  // namespace warprow
