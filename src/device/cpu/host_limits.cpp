// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/host_limits.h"

#include "device/cpu/cpu_device.h"

#include <algorithm>
#include <fstream>
#include <sched.h>
#include <sstream>
#include <unistd.h>
#include <vector>

namespace warprow::cpu {
namespace {

constexpr int64_t kNone = -1;

// The first number of a control file; kNone for "max", for version 1's -1 or if the file is missing.
int64_t read_number(const std::string& path, int64_t* second = nullptr) {
  std::ifstream file(path);
  int64_t number = kNone;
  if (!(file >> number) || (second != nullptr && !(file >> *second))) {
    return kNone;
  }
  return std::max(number, kNone);
}

// A group's directory and its parents, up to the controller's root.
void add_groups(const std::string& top, std::string group, std::vector<std::string>& dirs) {
  for (; group.size() > 1; group.resize(group.rfind('/'))) {
    dirs.push_back(top + group);
  }
  dirs.push_back(top);
}

// The directories whose files may limit this process, for one controller: "cpu" or "memory".
std::vector<std::string> group_dirs(const std::string& root, const std::string& controller) {
  const std::string mount = root + "/sys/fs/cgroup";
  std::vector<std::string> dirs;
  std::ifstream file(root + "/proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    // number:controllers:path; version 2 has no controllers
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    if (!std::getline(fields, number, ':') || !std::getline(fields, controllers, ':') ||
        !std::getline(fields, path) || path.empty() || path.front() != '/') {
      continue;
    }
    if (controllers.empty()) {
      add_groups(mount, path, dirs);
    } else if (("," + controllers + ",").find("," + controller + ",") != std::string::npos) {
      add_groups(std::string(mount).append("/").append(controller), path, dirs);
      add_groups(std::string(mount).append("/").append(controllers), path, dirs);
    }
  }
  if (dirs.empty()) {
    dirs = {mount, mount + "/" + controller};
  }
  return dirs;
}

}  // namespace

int32_t cores_within_quota(const std::string& root, int32_t cores) {
  int64_t most = cores;
  for (const std::string& dir : group_dirs(root, "cpu")) {
    int64_t period = 0;
    int64_t quota = read_number(dir + "/cpu.max", &period);
    if (quota == kNone) {
      quota = read_number(dir + "/cpu.cfs_quota_us");
      period = read_number(dir + "/cpu.cfs_period_us");
    }
    if (quota > 0 && period > 0) {
      most = std::min(most, quota / period);
    }
  }
  return static_cast<int32_t>(std::max<int64_t>(1, most));
}

int64_t memory_within_limit(const std::string& root, int64_t bytes) {
  for (const std::string& dir : group_dirs(root, "memory")) {
    for (const char* name : {"/memory.max", "/memory.limit_in_bytes"}) {
      const int64_t limit = read_number(dir + name);
      bytes = limit > 0 ? std::min(bytes, limit) : bytes;
    }
  }
  return bytes;
}

std::vector<int32_t> affinity_cores() {
  std::vector<int32_t> cores;
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int32_t core = 0; core < CPU_SETSIZE; ++core) {
      if (CPU_ISSET(core, &set)) {
        cores.push_back(core);
      }
    }
  }
  return cores;
}

int32_t usable_cores() {
  return cores_within_quota("", std::max(1, static_cast<int32_t>(affinity_cores().size())));
}

int64_t usable_memory_bytes() {
  return memory_within_limit("",
                             static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE));
}

}  // namespace warprow::cpu
