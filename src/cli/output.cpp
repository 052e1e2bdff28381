// SPDX-License-Identifier: Apache-2.0
#include "cli/output.h"

#include <cerrno>
#include <cstring>
#include <unistd.h>

#include <fmt/format.h>

namespace warprow {

Output::Output(int fd) : fd_(fd), is_terminal_(isatty(fd) == 1) {}

bool Output::write(std::string_view text) {
  if (!text.empty()) {
    in_line_ = text.back() != '\n';
  }
  while (!text.empty() && errno_ == 0) {
    const ssize_t written = ::write(fd_, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno != EINTR) {
      errno_ = errno;
    }
  }
  return errno_ == 0;
}

bool Output::end_line() { return in_line_ ? write("\n") : errno_ == 0; }

Result<void> Output::status() const {
  if (errno_ == 0 || errno_ == EPIPE) {
    return {};
  }
  return fail(ErrorCode::kInternal,
              fmt::format("cannot write the answer: {}", std::strerror(errno_)));
}

}  // namespace warprow
