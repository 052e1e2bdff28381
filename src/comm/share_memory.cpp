// SPDX-License-Identifier: Apache-2.0
#include "comm/share_memory.h"

#include "base/error.h"

#include <fstream>
#include <random>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {
namespace {

std::string new_name() {
  std::random_device random;
  return fmt::format("warprow.{}.{:08x}{:08x}", ::getpid(), random(), random());
}

// Takes the name away, also when start-up fails.
class NamedObject {
 public:
  NamedObject() = default;
  ~NamedObject() {
    if (!name.empty()) {
      SharedMemory::unlink_named(name);
    }
  }
  NamedObject(const NamedObject&) = delete;
  NamedObject& operator=(const NamedObject&) = delete;

  std::string name;
};

// Runs a step that may fail; returns why it did, "" if it did not.
template <typename F>
std::string error_of(const F& step) {
  try {
    step();
    return "";
  } catch (const StartupError& error) {
    return error.what();
  }
}

}  // namespace

std::string host_mark() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  struct stat facts{};
  ::stat("/dev/shm", &facts);
  return fmt::format("{}/{}", boot, facts.st_dev);
}

SharedMemory share_memory(HostGroup& group, const std::vector<int32_t>& members, size_t bytes) {
  const int32_t rank = group.place().rank;
  const int32_t first = members.front();
  const auto marks = group.exchange(host_mark());
  NamedObject object;
  SharedMemory memory;
  std::string error;
  for (const int32_t member : members) {
    if (marks[static_cast<size_t>(member)] != marks[static_cast<size_t>(first)]) {
      error = fmt::format(
          "ranks {} and {} share memory, but are not on one host or see different /dev/shm",
          first,
          member);
    }
  }
  if (error.empty() && rank == first) {
    object.name = new_name();
    error = error_of([&] { memory = SharedMemory::create_named(object.name, bytes); });
  }
  const std::string name = group.exchange(object.name)[static_cast<size_t>(first)];
  if (error.empty() && rank != first) {
    error = error_of([&] { memory = SharedMemory::open_named(name); });
  }
  const auto errors = group.exchange(error);
  for (const int32_t member : members) {
    if (!errors[static_cast<size_t>(member)].empty()) {
      throw StartupError(ErrorCode::kUnsupported, errors[static_cast<size_t>(member)]);
    }
  }
  return memory;
}

}  // namespace warprow
