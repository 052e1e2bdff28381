// SPDX-License-Identifier: Apache-2.0
#include "server/answer_lane.h"

#include <algorithm>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <utility>

namespace warprow {
namespace {

void lower_priority(int nice) {
  (void)setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), nice);
}

}  // namespace

AnswerLane::AnswerLane(const Limits& limits) : limits_(limits) {
  for (size_t i = 0; i < limits_.num_threads; ++i) {
    threads_.emplace_back([this] { work(); });
  }
}

AnswerLane::~AnswerLane() {
  {
    const std::scoped_lock lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

bool AnswerLane::submit(const std::string& client, std::function<void()> job) {
  {
    const std::scoped_lock lock(mutex_);
    const auto found = clients_.find(client);
    const size_t of_client = found == clients_.end() ? 0 : found->second.waiting.size();
    if (num_waiting_ >= limits_.most_waiting || of_client >= limits_.most_waiting_of_client) {
      return false;
    }
    if (of_client == 0) {
      turns_.push_back(client);
    }
    clients_[client].waiting.push_back(std::move(job));
    ++num_waiting_;
  }
  changed_.notify_one();
  return true;
}

std::pair<std::string, std::function<void()>> AnswerLane::take() {
  const auto next = std::find_if(turns_.begin(), turns_.end(), [&](const std::string& name) {
    return clients_[name].num_running < limits_.most_running_of_client;
  });
  if (next == turns_.end()) {
    return {};
  }
  std::string name = *next;
  turns_.erase(next);
  Client& client = clients_[name];
  std::function<void()> job = std::move(client.waiting.front());
  client.waiting.pop_front();
  --num_waiting_;
  ++client.num_running;
  if (!client.waiting.empty()) {
    turns_.push_back(name);
  }
  return {std::move(name), std::move(job)};
}

void AnswerLane::work() {
  if (limits_.nice > 0) {
    lower_priority(limits_.nice);
  }
  std::unique_lock lock(mutex_);
  while (true) {
    auto [name, job] = take();
    if (!job) {
      if (ending_ && num_waiting_ == 0) {
        return;
      }
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    job();
    job = nullptr;
    lock.lock();
    const auto client = clients_.find(name);
    if (--client->second.num_running == 0 && client->second.waiting.empty()) {
      clients_.erase(client);
    }
    changed_.notify_all();
  }
}

}  // namespace warprow
