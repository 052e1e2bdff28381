// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Templates and grammars are run by worker processes of this binary, whichever it is (rust/textkit, worker_main.rs).
// Started as one, it never comes to main: a function that runs before it looks at the first argument. Whoever
// needs workers calls this, so that the linker keeps that function; it does nothing else.
void link_helper_entry();

}  // namespace warprow
