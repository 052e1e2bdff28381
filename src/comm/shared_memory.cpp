// SPDX-License-Identifier: Apache-2.0
#include "comm/shared_memory.h"

#include "base/error.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

[[noreturn]] void refuse(const std::string& what, int error) {
  const ErrorCode code = error == ENOSPC || error == ENOMEM ? ErrorCode::kOutOfMemory
                         : error == ENOENT                  ? ErrorCode::kNotFound
                                                            : ErrorCode::kUnsupported;
  throw StartupError(code, fmt::format("{}: {}", what, std::strerror(error)));
}

// Closes the descriptor unless it was released.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  [[nodiscard]] int get() const { return fd_; }
  int release() { return std::exchange(fd_, -1); }

 private:
  int fd_;
};

size_t file_bytes(int fd, const std::string& what) {
  struct stat facts{};
  if (::fstat(fd, &facts) != 0) {
    refuse(what, errno);
  }
  return static_cast<size_t>(facts.st_size);
}

}  // namespace

SharedMemory::SharedMemory(int fd, size_t bytes, const std::string& what) : bytes_(bytes) {
  Descriptor descriptor(fd);
  void* at = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (at == MAP_FAILED) {
    refuse(what, errno);
  }
  data_ = static_cast<std::byte*>(at);
  fd_ = descriptor.release();
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  std::swap(fd_, other.fd_);
  return *this;
}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) {
    ::munmap(data_, bytes_);
    ::close(fd_);
  }
}

SharedMemory SharedMemory::create(size_t bytes) {
  const std::string what = fmt::format("cannot share {} bytes of memory between ranks", bytes);
  Descriptor descriptor(::memfd_create("warprow", MFD_CLOEXEC));
  if (descriptor.get() < 0 || ::ftruncate(descriptor.get(), static_cast<off_t>(bytes)) != 0) {
    refuse(what, errno);
  }
  return {descriptor.release(), bytes, what};
}

SharedMemory SharedMemory::open(int fd) {
  const std::string what = fmt::format("cannot map the shared memory of descriptor {}", fd);
  Descriptor descriptor(fd);
  const size_t bytes = file_bytes(fd, what);
  ::fcntl(fd, F_SETFD, FD_CLOEXEC);  // programs that this one starts later get none of it
  return {descriptor.release(), bytes, what};
}

// Without its pages now, a full /dev/shm would end the process later, at the first touch.
SharedMemory SharedMemory::create_named(const std::string& name, size_t bytes) {
  const std::string what =
      fmt::format("cannot share {} bytes of memory between ranks in /dev/shm/{}", bytes, name);
  Descriptor descriptor(::shm_open(("/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
  if (descriptor.get() < 0) {
    refuse(what, errno);
  }
  const int error = ::posix_fallocate(descriptor.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) {
    unlink_named(name);
    refuse(what, error);
  }
  return {descriptor.release(), bytes, what};
}

SharedMemory SharedMemory::open_named(const std::string& name) {
  const std::string what = fmt::format("cannot open the ranks' shared memory /dev/shm/{}", name);
  Descriptor descriptor(::shm_open(("/" + name).c_str(), O_RDWR, 0));
  if (descriptor.get() < 0) {
    refuse(what, errno);
  }
  const size_t bytes = file_bytes(descriptor.get(), what);
  return {descriptor.release(), bytes, what};
}

void SharedMemory::unlink_named(const std::string& name) { ::shm_unlink(("/" + name).c_str()); }

}  // namespace warprow
