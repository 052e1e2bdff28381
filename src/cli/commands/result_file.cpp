// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/result_file.h"

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
                                    std::string_view beginning,
                                    const std::function<std::string(const std::string&)>& key_of) {
  const auto refused = [&path](ErrorCode code, const std::string& why) {
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
    return out;  // a pipe or a terminal has no earlier results
  }
  std::ifstream file(path, std::ios::binary);
  int64_t whole_bytes = 0;
  for (std::string line; std::getline(file, line);) {
    const bool is_cut = file.eof();
    if (!line.starts_with(is_cut ? beginning.substr(0, line.size()) : beginning)) {
      return refused(
          ErrorCode::kInvalidArgument,
          fmt::format("its line {} is no result; name another file", out.keys_.size() + 1));
    }
    if (is_cut) {
      out.whole_bytes_ = whole_bytes;
      break;
    }
    whole_bytes += static_cast<int64_t>(line.size()) + 1;
    out.keys_.push_back(key_of(line));
  }
  return out;
}

Result<void> ResultFile::drop_cut_line() {
  if (whole_bytes_ && ftruncate(fd_, *whole_bytes_) != 0) {
    return fail(ErrorCode::kNotFound, fmt::format("-o: {}", std::strerror(errno)));
  }
  whole_bytes_.reset();
  return {};
}

ResultFile::ResultFile(ResultFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)),
      keys_(std::move(other.keys_)),
      whole_bytes_(other.whole_bytes_) {}

ResultFile::~ResultFile() {
  if (fd_ >= 0) {
    close(fd_);
  }
}

}  // namespace warprow
