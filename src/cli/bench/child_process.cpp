// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/child_process.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

constexpr const char* kOurselves = "/proc/self/exe";

// Owns: both ends of a pipe.
class Pipe {
 public:
  Pipe() { good_ = ::pipe2(ends_, O_CLOEXEC) == 0; }
  ~Pipe() {
    close_end(0);
    close_end(1);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  [[nodiscard]] bool good() const { return good_; }
  [[nodiscard]] int write_end() const { return ends_[1]; }
  void close_write_end() { close_end(1); }

  // Reads until all write ends are closed.
  std::string read_all() {
    std::string out;
    char buffer[4096];
    for (;;) {
      const ssize_t n = ::read(ends_[0], buffer, sizeof buffer);
      if (n == 0 || (n < 0 && errno != EINTR)) {
        return out;
      }
      out.append(buffer, n > 0 ? static_cast<size_t>(n) : 0);
    }
  }

 private:
  void close_end(int end) {
    const int fd = std::exchange(ends_[end], -1);
    if (fd >= 0) {
      ::close(fd);
    }
  }

  int ends_[2] = {-1, -1};
  bool good_ = false;
};

Result<pid_t> spawn(const Arguments& arguments, int stdout_fd) {
  std::vector<char*> argv{const_cast<char*>("warprow")};  // NOLINT: execv's type
  for (const std::string& argument : arguments) {
    argv.push_back(const_cast<char*>(argument.c_str()));  // NOLINT: execv's type
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, stdout_fd, STDOUT_FILENO);
  pid_t pid = 0;
  const int error = ::posix_spawn(&pid, kOurselves, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    return fail(ErrorCode::kInternal,
                fmt::format("cannot start {}: {}", kOurselves, std::strerror(error)));
  }
  return pid;
}

}  // namespace

Result<std::string> output_of_ourselves(const Arguments& arguments) {
  Pipe pipe;
  if (!pipe.good()) {
    return fail(ErrorCode::kInternal, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  const Result<pid_t> pid = spawn(arguments, pipe.write_end());
  if (!pid) {
    return tl::unexpected(pid.error());
  }
  pipe.close_write_end();
  std::string out = pipe.read_all();
  int status = 0;
  while (::waitpid(*pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
    return fail(ErrorCode::kInternal,
                WIFEXITED(status)
                    ? fmt::format("the started process ended with {}", WEXITSTATUS(status))
                    : fmt::format("the started process died of signal {}", WTERMSIG(status)));
  }
  return out;
}

}  // namespace warprow
