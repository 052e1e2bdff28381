// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"

#include <cstdint>
#include <string>
#include <string_view>

namespace warprow::cuda {

// The device code of a build, named as --version names it, separated by spaces:
//   sm_80       binaries for 8.0 and later capabilities of major version 8
//   sm_90a      binaries for 9.0 alone
//   compute_80  PTX, which a driver compiles for 8.0 and every later capability
// Compute capabilities are written 90 for 9.0.

// The capabilities that the code covers, in words: "8.0 and later", "8.0 to 8.9, 9.0".
std::string capabilities_in_words(std::string_view code);

// Why a GPU cannot be used, in one line that names it; empty if some of the code runs on it.
std::string why_no_code(std::string_view code, const DeviceFacts& gpu);

// The line that a start logs on a GPU of a kind on which no version of warprow has run its tests; empty on the others.
std::string untested_note(const DeviceFacts& gpu);

}  // namespace warprow::cuda
