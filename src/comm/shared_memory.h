// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <string>
#include <utility>

namespace warprow {

// Memory that several processes map. It starts as zeros and takes pages when first touched.
//
// Owns: the mapping and the file descriptor. The memory lives until its last mapping and descriptor are gone, however
// their processes end, so nothing is left behind.
class SharedMemory {
 public:
  // For child processes. They inherit the mapping over fork. Over exec the parent passes fd(), which is otherwise
  // closed, and the child opens it. The three throw StartupError.
  static SharedMemory create(size_t bytes);
  // Takes the descriptor; all of its bytes are mapped.
  static SharedMemory open(int fd);

  // For processes that are not children of each other: an object in /dev/shm, `name` without its slash. It has all its
  // pages at once. It has to be unlinked when all have opened it; share_memory (comm/share_memory.h) does.
  static SharedMemory create_named(const std::string& name, size_t bytes);
  static SharedMemory open_named(const std::string& name);
  static void unlink_named(const std::string& name);

  SharedMemory() = default;
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  ~SharedMemory();

  [[nodiscard]] std::byte* data() const { return data_; }
  [[nodiscard]] size_t bytes() const { return bytes_; }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  SharedMemory(int fd, size_t bytes, const std::string& what);

  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  int fd_ = -1;
};

}  // namespace warprow
