// SPDX-License-Identifier: Apache-2.0
#include "tests/comm/ranks.h"

#include "base/check.h"
#include "device/graph.h"

#include <cerrno>
#include <cstdio>
#include <deque>
#include <sys/wait.h>
#include <unistd.h>
#include <utility>

#include <fmt/format.h>

namespace warprow::test {
namespace {

std::string describe(const Operation& op, size_t index, GroupPlace place) {
  return fmt::format("operation {} ({}, [{}, {}], from {} to {}) on rank {} of {}",
                     index,
                     name_of(op.kind),
                     op.rows,
                     op.width,
                     op.from,
                     op.to,
                     place.rank,
                     place.size);
}

}  // namespace

void as_threads(int32_t size, const std::function<void(int32_t rank)>& body) {
  std::vector<std::jthread> threads;
  threads.reserve(static_cast<size_t>(size));
  for (int32_t rank = 0; rank < size; ++rank) {
    threads.emplace_back([&body, rank] { body(rank); });
  }
}

ChildProcess::ChildProcess(const std::function<int()>& body) : pid_(::fork()) {
  WR_CHECK(pid_ >= 0, "fork failed");
  if (pid_ == 0) {
    ::_exit(body());
  }
}

ChildProcess::~ChildProcess() {
  if (pid_ > 0) {
    kill();
  }
}

int ChildProcess::reap() const {
  int status = 0;
  while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  return status;
}

int ChildProcess::wait() const {
  const int status = reap();
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

int ChildProcess::kill() const {
  ::kill(pid_, SIGKILL);
  const int status = reap();
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

std::string as_processes(int32_t size, const std::function<std::string(int32_t rank)>& body) {
  std::deque<ChildProcess> ranks;
  for (int32_t rank = 0; rank < size; ++rank) {
    ranks.emplace_back([&body, rank] {
      const std::string wrong = body(rank);
      if (!wrong.empty()) {
        std::fprintf(stderr, "%s\n", wrong.c_str());
      }
      return wrong.empty() ? 0 : 1;
    });
  }
  std::string failed;
  for (int32_t rank = 0; rank < size; ++rank) {
    const int status = ranks[static_cast<size_t>(rank)].wait();
    if (status != 0) {
      failed += fmt::format("rank {} ended with status {}\n", rank, status);
    }
  }
  return failed;
}

std::unique_ptr<cpu::CpuDevice> make_test_device(cpu::CpuStreamMode mode, int32_t num_threads) {
  cpu::CpuDeviceOptions options;
  options.mode = mode;
  options.num_threads = num_threads;
  return cpu::make_cpu_device(options);
}

std::string run_operations(Communicator& comm,
                           GroupPlace place,
                           cpu::CpuStreamMode mode,
                           const std::vector<Operation>& operations,
                           int32_t num_threads) {
  constexpr size_t kAtOnce = 50;
  const auto device = make_test_device(mode, num_threads);
  const auto stream = device->make_stream();
  for (size_t first = 0; first < operations.size(); first += kAtOnce) {
    std::deque<RankOperation> running;
    for (size_t i = first; i < std::min(first + kAtOnce, operations.size()); ++i) {
      running.emplace_back(operations[i], place);
      running.back().enqueue(comm, *stream);
    }
    stream->synchronize();
    for (size_t i = 0; i < running.size(); ++i) {
      if (!running[i].right()) {
        return describe(running[i].operation(), first + i, place);
      }
    }
  }
  return "";
}

Clock::duration time_until_abort(Communicator& comm,
                                 GroupPlace place,
                                 cpu::CpuStreamMode mode,
                                 const Operation& operation) {
  RankOperation running(operation, place);
  const auto device = make_test_device(mode);
  const auto stream = device->make_stream();
  const auto start = Clock::now();
  running.enqueue(comm, *stream);
  running.enqueue(comm, *stream);
  stream->synchronize();
  return Clock::now() - start;
}

std::string replay_operations(Communicator& comm,
                              GroupPlace place,
                              cpu::CpuStreamMode mode,
                              const std::vector<Operation>& operations,
                              int32_t times) {
  const auto device = make_test_device(mode);
  const auto stream = device->make_stream();
  std::deque<RankOperation> recorded;
  stream->begin_capture();
  for (const Operation& op : operations) {
    recorded.emplace_back(op, place);
    recorded.back().enqueue(comm, *stream);
  }
  const auto graph = stream->end_capture();
  for (int32_t time = 0; time < times; ++time) {
    for (RankOperation& op : recorded) {
      op.load();
    }
    stream->launch_graph(*graph);
    stream->synchronize();
    for (size_t i = 0; i < recorded.size(); ++i) {
      if (!recorded[i].right()) {
        return fmt::format("launch {}: {}", time, describe(recorded[i].operation(), i, place));
      }
    }
  }
  return "";
}

}  // namespace warprow::test
