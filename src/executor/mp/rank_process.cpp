// SPDX-License-Identifier: Apache-2.0
#include "executor/mp/rank_process.h"

#include "base/error.h"
#include "base/log.h"

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iterator>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Above the descriptors that a rank gets, so that moving one there does not overwrite the other.
constexpr int kFreeFds = 10;
// A process may have to wait for the driver of its GPU before it ends, SIGKILL or not.
constexpr std::chrono::seconds kReapTime{5};

// A copy with a number that is free in the child.
class HighCopy {
 public:
  explicit HighCopy(int fd) : fd_(::fcntl(fd, F_DUPFD_CLOEXEC, kFreeFds)) {
    if (fd_ < 0) {
      throw StartupError(ErrorCode::kInternal,
                         fmt::format("cannot start a rank: {}", std::strerror(errno)));
    }
  }
  ~HighCopy() { ::close(fd_); }
  HighCopy(const HighCopy&) = delete;
  HighCopy& operator=(const HighCopy&) = delete;
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

std::string describe(int status) {
  if (WIFSIGNALED(status)) {
    return fmt::format("signal {} ({})", WTERMSIG(status), ::strsignal(WTERMSIG(status)));
  }
  return fmt::format("exit code {}", WEXITSTATUS(status));
}

}  // namespace

RankProcess::RankProcess(const std::string& binary,
                         const RankArguments& arguments,
                         int memory_fd,
                         int life_fd) {
  const HighCopy memory(memory_fd);
  const HighCopy life(life_fd);
  std::vector<std::string> words = arguments.words();
  words.insert(words.begin(), binary);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  ::posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  ::posix_spawn_file_actions_adddup2(&actions, memory.fd(), kRankMemoryFd);
  ::posix_spawn_file_actions_adddup2(&actions, life.fd(), kRankLifeFd);
  const int error = ::posix_spawn(&pid_, binary.c_str(), &actions, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&actions);
  if (error != 0) {
    pid_ = -1;
    throw StartupError(
        ErrorCode::kNotFound,
        fmt::format("worker-binary: cannot start {}: {}", binary, std::strerror(error)));
  }
}

RankProcess::RankProcess(RankProcess&& other) noexcept
    : pid_(std::exchange(other.pid_, -1)),
      status_(other.status_),
      ended_(std::move(other.ended_)) {}

RankProcess::~RankProcess() {
  if (pid_ <= 0) {
    return;
  }
  kill();
  const std::chrono::steady_clock::time_point until = std::chrono::steady_clock::now() + kReapTime;
  while (!ended()) {
    if (std::chrono::steady_clock::now() > until) {
      WR_LOG_WARN("process {} (state {}) does not end {} s after SIGKILL; it is left to init",
                  pid_,
                  state(),
                  kReapTime.count());
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

const std::optional<std::string>& RankProcess::ended() {
  if (!ended_ && pid_ > 0 && ::waitpid(pid_, &status_, WNOHANG) == pid_) {
    ended_ = describe(status_);
  }
  return ended_;
}

// The state is the letter after the name, which stands in parentheses and may contain any.
char RankProcess::state() const {
  std::ifstream file(fmt::format("/proc/{}/stat", pid_));
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const size_t name_end = text.rfind(") ");
  return name_end == text.npos || name_end + 2 >= text.size() ? '?' : text[name_end + 2];
}

void RankProcess::kill() {
  if (pid_ > 0 && !ended()) {
    ::kill(pid_, SIGKILL);
  }
}

}  // namespace warprow
