// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "cli/commands/command.h"

#include <string>

namespace warprow {

// Runs this program as a child process with other arguments, waits for its end and returns its stdout. The child
// inherits our stderr. An error if the child cannot be started or exits with a failure.
Result<std::string> output_of_ourselves(const Arguments& arguments);

}  // namespace warprow
