// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace warprow::cpu {

// The limits that a container's control groups (version 2 or 1) set. Read below `root`, "" on a real machine:
// root/proc/self/cgroup names the group, root/sys/fs/cgroup has its files. Limits of all parent groups count too.
// In a namespace of its own a group may have a path that does not exist: then its files lie at the top. Missing or
// malformed files limit nothing.

// Of `cores` in the affinity mask, as many as the CPU quota covers in full, at least 1.
int32_t cores_within_quota(const std::string& root, int32_t cores);
// The cores in this process's affinity mask, ascending.
std::vector<int32_t> affinity_cores();
// The smallest of `bytes` and the memory limits.
int64_t memory_within_limit(const std::string& root, int64_t bytes);

}  // namespace warprow::cpu
