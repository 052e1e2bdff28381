// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

namespace warprow {

// The program's exit codes, which are part of the interface (README, --help).
enum class ExitCode : int {
  kOk = 0,
  kRequestFailed = 1,  // a request failed; the others ran
  kUsage = 2,          // a flag, a setting or a request's value is wrong
  kModel = 3,          // a model or file is missing, corrupt or unsupported
  kMemory = 4,         // not enough memory for the request or settings
  kInternal = 5,       // a bug, or a device or stream that failed
  kInterrupted = 130,  // Ctrl-C
  kTerminated = 143,   // SIGTERM
};

ExitCode exit_code_of(ErrorCode code);

// The error of a refused request. The user must change an unsupported option, so it gets the exit code of a wrong value
// instead of that of an unsupported model.
Error refused_request(Error error);

// The exit-code paragraph of --help.
const char* exit_codes_help();

}  // namespace warprow
