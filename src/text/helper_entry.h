// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>

namespace warprow {

// Worker processes run templates and grammars. They execute the same binary as the caller (rust/textkit,
// worker_main.rs). A worker process never reaches main: a constructor function that runs before main checks the first
// argument. Code that needs workers calls this function, so that the linker keeps the constructor. It does nothing
// else.
void link_helper_entry();

// Worker processes execute the warprow binary at `path` instead. For another program that loaded the engine as a shared
// library. kInvalidArgument if another path was set before. Thread: any, before the first worker process.
Result<void> set_helper_program(const std::string& path);

}  // namespace warprow
