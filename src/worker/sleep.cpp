// SPDX-License-Identifier: Apache-2.0
#include "worker/sleep.h"

#include "base/check.h"
#include "worker/rank.h"

#include <chrono>
#include <utility>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// Reports what an operation moved, and how long it took.
class Report {
 public:
  explicit Report(Device& device) : device_(device), free_before_(device.free_bytes()) {}

  std::string json(int level, int64_t weights_bytes, int64_t kv_bytes, int64_t host_bytes) const {
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun_;
    const nlohmann::ordered_json json = {{"level", level},
                                         {"weights_bytes", weights_bytes},
                                         {"kv_bytes", kv_bytes},
                                         {"host_bytes", host_bytes},
                                         {"device_free_before", free_before_},
                                         {"device_free_after", device_.free_bytes()},
                                         {"seconds", took.count()}};
    return json.dump();
  }

 private:
  Device& device_;
  int64_t free_before_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

int64_t bytes_of(const Arena& arena) { return static_cast<int64_t>(arena.capacity()); }

}  // namespace

SleepMode::SleepMode(
    Device& device, Stream& stream, Arena& weights, KvCache& cache, std::function<void()> reload)
    : device_(device),
      stream_(stream),
      weights_(weights),
      cache_(cache),
      reload_(std::move(reload)) {}

std::string SleepMode::sleep(int level) {
  WR_CHECK(level == 1 || level == 2);
  WR_CHECK(awake(), "the worker sleeps already");
  const Report report(device_);
  stream_.synchronize();
  level_ = level;
  if (level == 1) {
    save_weights();
  }
  weights_.set_resident(false);
  cache_.set_resident(false);
  return report.json(
      level, bytes_of(weights_), bytes_of(cache_.arena()), weights_saved_ ? bytes_of(weights_) : 0);
}

std::string SleepMode::wake_up(const std::string& tags) {
  const bool all = tags.empty();
  const bool weights = all || tags.find("weights") != std::string::npos;
  const bool cache = all || tags.find("kv_cache") != std::string::npos;
  const bool wake_those = weights && !weights_.resident();
  const bool wake_that = cache && !cache_.arena().resident();
  const Report report(device_);
  if (wake_those) {
    wake_weights();
  }
  if (wake_that) {
    wake_cache();
  }
  return report.json(level_,
                     wake_those ? bytes_of(weights_) : 0,
                     wake_that ? bytes_of(cache_.arena()) : 0,
                     weights_saved_ ? bytes_of(weights_) : 0);
}

void SleepMode::save_weights() {
  saved_ = device_.make_pinned(weights_.capacity());
  stream_.copy_to_host(saved_.data(), weights_.base(), weights_.capacity());
  stream_.synchronize();
  weights_saved_ = true;
}

void SleepMode::wake_weights() {
  weights_.set_resident(true);
  if (weights_saved_) {
    stream_.copy_to_device(weights_.base(), saved_.data(), weights_.capacity());
    stream_.synchronize();
    saved_ = {};
    weights_saved_ = false;
    return;
  }
  try {
    reload_();
  } catch (...) {
    weights_.set_resident(false);
    throw;
  }
}

void SleepMode::wake_cache() {
  cache_.set_resident(true);
  zero_kv_cache(stream_, cache_);
}

}  // namespace warprow
