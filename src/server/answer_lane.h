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

// A queue of jobs with threads of its own. Clients take turns: who has many jobs waiting delays his own alone.
//
// Owns: its threads. Thread: any.
class AnswerLane {
 public:
  struct Limits {
    size_t num_threads = 1;
    size_t most_waiting = 2048;
    size_t most_waiting_of_client = 1024;
    size_t most_running_of_client = 1;
    bool in_background = false;  // its threads yield to others when the processor is busy
  };

  explicit AnswerLane(const Limits& limits);
  // Waits for all jobs.
  ~AnswerLane();
  AnswerLane(const AnswerLane&) = delete;
  AnswerLane& operator=(const AnswerLane&) = delete;

  // false: too many wait, and the job is dropped. Jobs must not throw.
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
  std::map<std::string, Client> clients_;  // under mutex_, as all below; those with jobs
  std::deque<std::string> turns_;          // each client with a waiting job, once
  size_t num_waiting_ = 0;
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace warprow
