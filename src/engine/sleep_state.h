// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <atomic>
#include <string>
#include <vector>

namespace warprow {

inline constexpr const char* kWeightsAreGone =
    "the engine sleeps without its weights; wake it up first";

// Which parts of the workers' memory are asleep, as far as requests and steps depend on it.
//
// Thread: the engine's writes, any reads.
class SleepState {
 public:
  // Whether steps can run.
  [[nodiscard]] bool awake() const { return !weights_ && !cache_; }
  // Whether requests are refused: the weights must be loaded again.
  [[nodiscard]] bool weights_gone() const { return weights_ && level_ == 2; }

  void fall_asleep(int level) {
    level_ = level;
    weights_ = cache_ = true;
  }
  void wake(const std::string& tags) {
    weights_ = weights_ && !names(tags, "weights");
    cache_ = cache_ && !names(tags, "kv_cache");
  }

  // The tags as one string for the workers; empty for all.
  static Result<std::string> join_tags(const std::vector<std::string>& tags) {
    std::string joined;
    for (const std::string& tag : tags) {
      if (tag != "weights" && tag != "kv_cache") {
        return fail(ErrorCode::kInvalidArgument,
                    "wake_up: '" + tag + "' is neither weights nor kv_cache");
      }
      joined += (joined.empty() ? "" : ",") + tag;
    }
    return joined;
  }

 private:
  static bool names(const std::string& tags, const char* tag) {
    return tags.empty() || tags.find(tag) != std::string::npos;
  }

  std::atomic<bool> weights_ = false;
  std::atomic<bool> cache_ = false;
  std::atomic<int> level_ = 0;
};

}  // namespace warprow
