// SPDX-License-Identifier: Apache-2.0
#include "tests/executor/launched_ranks.h"

#include "base/check.h"
#include "comm/tcp/socket.h"
#include "config/fields.h"

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <spawn.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

namespace warprow::test {
namespace {

pid_t start_rank(int32_t rank, const std::vector<std::string>& settings) {
  const std::string program =
      std::filesystem::read_symlink("/proc/self/exe").parent_path() / "rank_process";
  std::vector<std::string> words = {program, "launched"};
  words.insert(words.end(), settings.begin(), settings.end());
  std::vector<char*> argv;
  for (std::string& word : words) {
    argv.push_back(word.data());
  }
  argv.push_back(nullptr);
  ::setenv("RANK", std::to_string(rank).c_str(), 1);
  pid_t pid = -1;
  WR_CHECK_EQ(::posix_spawn(&pid, program.c_str(), nullptr, nullptr, argv.data(), environ), 0);
  return pid;
}

}  // namespace

uint16_t LaunchedRanks::free_port() { return Listener(true, 0).port(); }

LaunchedRanks::LaunchedRanks(const EngineConfig& config, const std::vector<std::string>& other) {
  std::vector<std::string> settings;
  for_each_field([&](const Field& field) {
    settings.push_back(std::string(field.name) + "=" + field_text(config, field));
  });
  settings.insert(settings.end(), other.begin(), other.end());
  const int32_t size = config.tensor_parallel_size * config.pipeline_parallel_size;
  ::setenv("WORLD_SIZE", std::to_string(size).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", std::to_string(free_port()).c_str(), 1);
  for (int32_t rank = 1; rank < size; ++rank) {
    pids_.push_back(start_rank(rank, settings));
  }
  ::setenv("RANK", "0", 1);
}

LaunchedRanks::~LaunchedRanks() {
  for (const pid_t pid : pids_) {
    if (pid > 0) {
      ::kill(pid, SIGKILL);
      ::waitpid(pid, nullptr, 0);
    }
  }
  for (const char* name : {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    ::unsetenv(name);
  }
}

std::optional<int> LaunchedRanks::exit_code(int32_t rank, std::chrono::milliseconds patience) {
  pid_t& pid = pids_[static_cast<size_t>(rank - 1)];
  const auto until = std::chrono::steady_clock::now() + patience;
  int status = 0;
  while (::waitpid(pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > until) {
      return std::nullopt;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  pid = -1;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace warprow::test
