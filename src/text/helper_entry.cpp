// SPDX-License-Identifier: Apache-2.0
#include "text/helper_entry.h"

#include "text/textkit_call.h"

#include <string_view>

namespace warprow {
namespace {

// Before main, so that a worker has no flags, no logs, no threads and no device, in every binary that links this.
// The C library passes the program's arguments to such functions.
[[gnu::constructor]] void become_helper(int num_arguments, char** arguments) {
  if (num_arguments == 2 && std::string_view(arguments[1]) == WR_HELPER_ARGUMENT) {
    wr_helper_main();
  }
}

}  // namespace

void link_helper_entry() {}

}  // namespace warprow
