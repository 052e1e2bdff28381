// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace warprow {

// Raises the soft limit of file descriptors to the hard limit, if possible. Each connection takes a descriptor, and the
// usual soft limit of 1024 is too low.
void raise_file_limit();

}  // namespace warprow
