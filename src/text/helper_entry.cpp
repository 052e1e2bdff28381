// SPDX-License-Identifier: Apache-2.0
#include "text/helper_entry.h"

#include "text/textkit_call.h"

#include <string_view>

namespace warprow {
namespace {

// Runs before main in every binary that links this file, so that a worker process has no flags, logs, threads or
// device. The C library passes the program's arguments to constructor functions.
[[gnu::constructor]] void become_helper(int num_arguments, char** arguments) {
  if (num_arguments == 2 && std::string_view(arguments[1]) == WR_HELPER_ARGUMENT) {
    wr_helper_main();
  }
}

}  // namespace

void link_helper_entry() {}

Result<void> set_helper_program(const std::string& path) {
  if (wr_set_helper_program(path.c_str()) != 0) {
    return fail(ErrorCode::kInvalidArgument,
                "worker-binary: this process already runs another program for its workers");
  }
  return {};
}

}  // namespace warprow
