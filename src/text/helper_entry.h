// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Worker processes run templates and grammars. They execute the same binary as the caller (rust/textkit,
// worker_main.rs). A worker process never reaches main: a constructor function that runs before main checks the first
// argument. Code that needs workers calls this function, so that the linker keeps the constructor. It does nothing
// else.
void link_helper_entry();

}  // namespace warprow
