// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine_loop.h"
#include "executor/executor.h"

#include <atomic>
#include <string>
#include <utility>
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
  static Result<std::string> join_tags(const std::vector<std::string>& tags);

 private:
  static bool names(const std::string& tags, const char* tag) {
    return tags.empty() || tags.find(tag) != std::string::npos;
  }

  std::atomic<bool> weights_ = false;
  std::atomic<bool> cache_ = false;
  std::atomic<int> level_ = 0;
};

// What the engine does at a call, between two steps: sleep, wake-up, pause, a cache without prefixes, a list of
// requests.
//
// Thread: the engine's, as tasks of the inbox; state() and paused() any.
class EngineControl {
 public:
  // weights: the model whose weights are loaded.
  EngineControl(Executor& executor, EngineLoop& loop, std::string weights)
      : executor_(executor), loop_(loop), weights_(std::move(weights)) {}

  // Each rank's report, or why not; see contracts.sleep.
  Result<std::vector<std::string>> sleep(int level);
  // tags: see SleepState::join_tags.
  Result<std::vector<std::string>> wake_up(const std::string& tags);
  Result<void> reset_prefix_cache();
  // keeps: requests go on after resume(); else they end.
  Result<void> pause(bool keeps);
  Result<void> resume();
  // Begins a pause that waits for the current requests to end. New requests wait outside the scheduler. True if it is
  // paused already. An error while another such pause waits.
  Result<bool> begin_drain();
  // Pauses once these requests have ended: true then. An error if resume() came first.
  Result<bool> poll_drain();
  // See Engine. Ends the engine (StartupError) if neither the new weights nor the old ones can be read.
  Result<void> update_weights(const std::string& model);
  [[nodiscard]] std::vector<RequestStatus> list_requests() const {
    return loop_.scheduler().list_requests();
  }

  [[nodiscard]] const SleepState& state() const { return state_; }
  [[nodiscard]] bool paused() const { return paused_; }

 private:
  // Lets steps run, or not, as both states say.
  void pause_or_resume();
  void end_drain();

  Executor& executor_;
  EngineLoop& loop_;
  std::string weights_;
  SleepState state_;
  bool drains_ = false;
  std::atomic<bool> paused_ = false;  // by pause()
};

}  // namespace warprow
