// SPDX-License-Identifier: Apache-2.0
#include "files/mapped_file.h"

#include "base/check.h"

#include <algorithm>
#include <cerrno>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <system_error>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

tl::unexpected<Error> cannot(const char* what, const std::string& path, int error) {
  const bool absent = error == ENOENT || error == ENOTDIR;
  return fail(
      absent ? ErrorCode::kNotFound : ErrorCode::kInvalidArgument,
      fmt::format("cannot {} '{}': {}", what, path, std::generic_category().message(error)));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // Non-blocking, so that a named pipe is refused below instead of waited for.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return cannot("open", path, errno);
  }
  struct stat info{};
  if (::fstat(fd, &info) != 0) {
    const int error = errno;
    ::close(fd);
    return cannot("examine", path, error);
  }
  if (!S_ISREG(info.st_mode)) {
    ::close(fd);
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "'{}' is {}, not a file", path, S_ISDIR(info.st_mode) ? "a directory" : "a device"));
  }
  const auto size = static_cast<size_t>(info.st_size);
  void* data = nullptr;
  if (size > 0) {  // mmap refuses an empty mapping; an empty file is valid here
    data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
  }
  const int error = errno;
  ::close(fd);
  if (data == MAP_FAILED) {
    return cannot("map", path, error);
  }
  return MappedFile(static_cast<const std::byte*>(data), size);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
  }
  return *this;
}

MappedFile::~MappedFile() { unmap(); }

void MappedFile::unmap() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

void MappedFile::advise_drop(size_t offset, size_t len) const {
  WR_CHECK(offset <= size_ && len <= size_ - offset, "{} + {} of {} bytes", offset, len, size_);
  const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = offset / page * page;
  if (len > 0) {  // advice: a failure costs memory, not correctness
    (void)::madvise(const_cast<std::byte*>(data_) + begin, offset + len - begin, MADV_DONTNEED);
  }
}

void MappedFile::advise_sequential() const {
  if (data_ != nullptr) {
    (void)::madvise(const_cast<std::byte*>(data_), size_, MADV_SEQUENTIAL);
  }
}

}  // namespace warprow
