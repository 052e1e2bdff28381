// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/command.h"

#include <string>

namespace warprow {

// Starts this program once more with other arguments, waits for its end and returns what it wrote to
// stdout; its stderr is ours. An error when it cannot be started or does not end with success.
Result<std::string> output_of_ourselves(const Arguments& arguments);

}  // namespace warprow
