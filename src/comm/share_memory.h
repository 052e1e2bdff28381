// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/host_group.h"
#include "comm/shared_memory.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace warprow {

// Equal where processes see the same objects in /dev/shm, so that they may share memory: the boot of the machine, and the
// mount.
std::string host_mark();

// Memory that the members of this rank's group share, who run on one host and are not children of one process (mpirun,
// srun). It starts as zeros, and its name in /dev/shm is gone when this returns.
//
// All ranks of the host group call it at the same time, each with the members of its own group, as ranks in ascending
// order. Throws StartupError: the members are on several hosts, or there is too little memory.
SharedMemory share_memory(HostGroup& group, const std::vector<int32_t>& members, size_t bytes);

}  // namespace warprow
