// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Each connection takes a file descriptor, and the usual soft limit of 1024 is soon reached: raises it
// to the hard one, if it can.
void raise_file_limit();

}  // namespace warprow
