// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

namespace warprow {

// How the program ends; part of the interface (README, --help).
enum class ExitCode : int {
  kOk = 0,
  kRequestFailed = 1,  // a request failed; the others ran
  kUsage = 2,          // a flag, a setting or a request's value is wrong
  kModel = 3,          // a model or file is missing, corrupt or unsupported
  kMemory = 4,         // not enough memory for what was asked
  kInternal = 5,       // our mistake, or a device or stream that failed
  kInterrupted = 130,  // Ctrl-C
  kTerminated = 143,   // SIGTERM
};

ExitCode exit_code_of(ErrorCode code);

// The error of a request that was refused: what is not supported in it is the user's to change, not
// the model's fault, so it ends the program as a wrong value does.
Error refused_request(Error error);

// The paragraph of --help.
const char* exit_codes_help();

}  // namespace warprow
