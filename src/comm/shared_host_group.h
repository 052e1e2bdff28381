// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/abort_flag.h"
#include "comm/host_group.h"

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace warprow {

// The memory that a group of this many ranks shares.
size_t shared_host_group_bytes(int32_t size);

// One rank's host group over shared memory. All ranks pass the same memory, aligned to a page, which started as zeros
// and outlives the groups. Construction does not wait for other ranks; a call does, for at most `patience`.
std::unique_ptr<HostGroup> make_shared_host_group(GroupPlace place,
                                                  std::byte* memory,
                                                  AbortFlag& abort,
                                                  std::chrono::milliseconds patience);

}  // namespace warprow
