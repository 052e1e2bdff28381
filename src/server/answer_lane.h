// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace warprow {

// A queue of jobs with its own thread pool. The queue serves clients in turn (round robin), so a client with many
// waiting jobs delays only its own jobs.
//
// Owns: its threads. Thread: any.
class AnswerLane {
 public:
  struct Limits {
    size_t num_threads = 1;
    size_t most_waiting = 2048;
    size_t most_waiting_of_client = 1024;
    size_t most_running_of_client = 1;
    int nice = 0;  // of the threads, as in setpriority(2): above 0 is a lower priority
  };

  explicit AnswerLane(const Limits& limits);
  // Waits for all jobs.
  ~AnswerLane();
  AnswerLane(const AnswerLane&) = delete;
  AnswerLane& operator=(const AnswerLane&) = delete;

  // false: too many jobs wait, and this job is dropped. Jobs must not throw.
  [[nodiscard]] bool submit(const std::string& client, std::function<void()> job);

 private:
  struct Client {
    std::deque<std::function<void()>> waiting;
    size_t num_running = 0;
  };

  void work();
  // The next job and its client; the job is empty if none may run now.
  std::pair<std::string, std::function<void()>> take();

  const Limits limits_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Client> clients_;  // those with jobs; mutex_ guards this and all below
  std::deque<std::string> turns_;          // each client with a waiting job, once
  size_t num_waiting_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace warprow
