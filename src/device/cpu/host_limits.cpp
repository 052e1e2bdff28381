// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <sched.h>
#include <string>
#include <unistd.h>

namespace warprow::cpu {
namespace {

// The two numbers of a cgroup file such as cpu.max ("200000 100000" or "max 100000"); -1 for "max"
// or a missing file.
int64_t read_limit(const char* path, int64_t* second = nullptr) {
  std::ifstream file(path);
  std::string first;
  if (!(file >> first)) {
    return -1;
  }
  if (second != nullptr && !(file >> *second)) {
    return -1;
  }
  if (first == "max" || first.empty() || first[0] == '-') {
    return -1;
  }
  return std::stoll(first);
}

}  // namespace

int32_t usable_cores() {
  int32_t cores = 1;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    cores = std::max(1, CPU_COUNT(&set));
  }
  int64_t period = 0;
  int64_t quota = read_limit("/sys/fs/cgroup/cpu.max", &period);
  if (quota < 0) {
    quota = read_limit("/sys/fs/cgroup/cpu/cpu.cfs_quota_us");
    period = read_limit("/sys/fs/cgroup/cpu/cpu.cfs_period_us");
  }
  if (quota > 0 && period > 0) {
    cores = std::min(cores, static_cast<int32_t>(std::max<int64_t>(1, quota / period)));
  }
  return cores;
}

int64_t usable_memory_bytes() {
  int64_t bytes = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  for (const char* path :
       {"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"}) {
    const int64_t limit = read_limit(path);
    if (limit > 0) {
      bytes = std::min(bytes, limit);
    }
  }
  return bytes;
}

}  // namespace warprow::cpu
