// SPDX-License-Identifier: Apache-2.0
#include "cli/exit_code.h"

namespace warprow {

ExitCode exit_code_of(ErrorCode code) {
  switch (code) {
    case ErrorCode::kInvalidArgument:
      return ExitCode::kUsage;
    case ErrorCode::kNotFound:
    case ErrorCode::kUnsupported:
    case ErrorCode::kCorrupt:
      return ExitCode::kModel;
    case ErrorCode::kOutOfMemory:
      return ExitCode::kMemory;
    case ErrorCode::kBusy:
    case ErrorCode::kInternal:
      return ExitCode::kInternal;
  }
  return ExitCode::kInternal;
}

Error refused_request(Error error) {
  if (error.code == ErrorCode::kUnsupported) {
    error.code = ErrorCode::kInvalidArgument;
  }
  return error;
}

const char* exit_codes_help() {
  return "Exit codes\n"
         "  0    done\n"
         "  1    a request failed\n"
         "  2    a flag, a setting or a request's value is wrong\n"
         "  3    a model or file is missing, corrupt or unsupported\n"
         "  4    not enough memory\n"
         "  5    an internal or device failure\n"
         "  130  interrupted (Ctrl-C)\n"
         "  143  terminated (SIGTERM)\n";
}

}  // namespace warprow
