// SPDX-License-Identifier: Apache-2.0
#include "capi/output_box.h"

#include <algorithm>
#include <chrono>

namespace warprow {

uint64_t OutputBox::open(SharedPrompt prompt, size_t num_choices, bool each_update) {
  const std::lock_guard lock(mutex_);
  const uint64_t request = next_request_++;
  live_.emplace(
      request, Live{std::move(prompt), std::vector<Choice>(num_choices), num_choices, each_update});
  return request;
}

bool OutputBox::name_choices(uint64_t request, const std::vector<RequestId>& ids) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(request);
  for (size_t i = 0; found != live_.end() && i < ids.size(); ++i) {
    found->second.choices[i].id = ids[i];
  }
  return !closed_;
}

void OutputBox::push(uint64_t request, size_t choice, const RequestUpdate& update) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(request);
    if (closed_ || found == live_.end()) {
      return;
    }
    Choice& target = found->second.choices[choice];
    join_update(target.news, update);
    target.has_ended = update.finish_reason != FinishReason::kNone;
    if (target.is_ready || !(target.has_ended || found->second.each_update)) {
      return;
    }
    target.is_ready = true;
    ready_.emplace_back(request, choice);
  }
  changed_.notify_one();
}

std::unique_ptr<OutputData> OutputBox::take() {
  const auto [request, index] = ready_.front();
  ready_.pop_front();
  const auto found = live_.find(request);
  Live& live = found->second;
  Choice& choice = live.choices[index];
  choice.is_ready = false;
  live.num_untaken -= choice.has_ended ? 1 : 0;
  const OutputPlace place{.request = request,
                          .choice = static_cast<int32_t>(index),
                          .num_choices = static_cast<int32_t>(live.choices.size()),
                          .is_last = live.num_untaken == 0};
  auto output = std::make_unique<OutputData>(place, std::exchange(choice.news, {}), live.prompt);
  if (live.num_untaken == 0) {
    live_.erase(found);
  }
  return output;
}

std::pair<warprow_status, std::unique_ptr<OutputData>> OutputBox::wait(int64_t timeout_ms) {
  std::unique_lock lock(mutex_);
  const auto has_answer = [this] { return closed_ || !ready_.empty() || live_.empty(); };
  // A longer time overflows the clock.
  constexpr int64_t kLongestMs = int64_t{1000} * 60 * 60 * 24 * 365;
  if (timeout_ms < 0 || timeout_ms > kLongestMs) {
    changed_.wait(lock, has_answer);
  } else if (!changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), has_answer)) {
    return {WARPROW_TIMEOUT, nullptr};
  }
  if (closed_) {
    return {WARPROW_CLOSED, nullptr};
  }
  if (ready_.empty()) {
    return {WARPROW_DONE, nullptr};
  }
  std::unique_ptr<OutputData> output = take();
  const bool done = live_.empty();
  lock.unlock();
  if (done) {
    changed_.notify_all();  // others that wait have nothing more to come
  }
  return {WARPROW_OK, std::move(output)};
}

std::vector<RequestId> OutputBox::running(uint64_t request) {
  const std::lock_guard lock(mutex_);
  const auto found = live_.find(request);
  std::vector<RequestId> ids;
  if (found != live_.end()) {
    for (const Choice& choice : found->second.choices) {
      if (!choice.has_ended) {
        ids.push_back(choice.id);
      }
    }
  }
  return ids;
}

std::vector<RequestId> OutputBox::running() {
  std::vector<uint64_t> requests;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [request, live] : live_) {
      requests.push_back(request);
    }
  }
  std::vector<RequestId> ids;
  for (const uint64_t request : requests) {
    const std::vector<RequestId> more = running(request);
    ids.insert(ids.end(), more.begin(), more.end());
  }
  return ids;
}

void OutputBox::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

bool OutputBox::is_closed() {
  const std::lock_guard lock(mutex_);
  return closed_;
}

}  // namespace warprow
