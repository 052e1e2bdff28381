// SPDX-License-Identifier: Apache-2.0
#include "cli/result_file.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow {

Result<ResultFile> ResultFile::open(const std::string& path,
                                    const std::function<std::string(const std::string&)>& key_of) {
  const auto refused = [&path](ErrorCode code, const char* why) {
    return fail(code, fmt::format("-o: cannot write '{}': {}", path, why));
  };
  constexpr mode_t kMode = 0644;
  ResultFile out(::open(path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, kMode));
  if (out.fd_ < 0) {
    return refused(ErrorCode::kNotFound, std::strerror(errno));
  }
  if (flock(out.fd_, LOCK_EX | LOCK_NB) != 0) {
    return refused(ErrorCode::kInvalidArgument, "another process does");
  }
  struct stat status{};
  if (fstat(out.fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
    return out;  // a pipe or a terminal has nothing to go on with
  }
  std::ifstream file(path, std::ios::binary);
  off_t whole = 0;
  for (std::string line; std::getline(file, line) && !file.eof();) {
    whole += static_cast<off_t>(line.size()) + 1;
    out.keys_.push_back(key_of(line));
  }
  if (whole < status.st_size && ftruncate(out.fd_, whole) != 0) {
    return refused(ErrorCode::kNotFound, std::strerror(errno));
  }
  return out;
}

ResultFile::ResultFile(ResultFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), keys_(std::move(other.keys_)) {}

ResultFile::~ResultFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

}  // namespace warprow
