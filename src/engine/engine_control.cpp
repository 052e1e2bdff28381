// SPDX-License-Identifier: Apache-2.0
#include "engine/engine_control.h"

#include "executor/rank_operations.h"
#include "sched/scheduler.h"

#include <utility>

namespace warprow {
namespace {

// Asks every rank. A rank that cannot answers with a StartupError.
template <typename Operation>
Result<std::vector<std::string>> ask_ranks(Executor& executor, const Operation& operation) {
  try {
    return executor.call(operation).get();
  } catch (const StartupError& error) {
    return fail(error.code(), error.what());
  }
}

}  // namespace

Result<std::string> SleepState::join_tags(const std::vector<std::string>& tags) {
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

Result<std::vector<std::string>> EngineControl::sleep(int level) {
  if (!state_.awake()) {
    return fail(ErrorCode::kInvalidArgument, "sleep: the engine sleeps already");
  }
  loop_.end_all();
  Result<std::vector<std::string>> reports = ask_ranks(executor_, SleepRanks{level});
  if (reports) {
    loop_.scheduler().reset_prefix_cache();
    state_.fall_asleep(level);
    pause_or_resume();
  }
  return reports;
}

Result<std::vector<std::string>> EngineControl::wake_up(const std::string& tags) {
  Result<std::vector<std::string>> reports = ask_ranks(executor_, WakeRanks{tags});
  if (reports) {
    state_.wake(tags);
    pause_or_resume();
  }
  return reports;
}

Result<void> EngineControl::reset_prefix_cache() {
  Scheduler& scheduler = loop_.scheduler();
  if (scheduler.num_in_flight() > 0 || scheduler.stats().num_running > 0) {
    return fail(ErrorCode::kInvalidArgument, "the prefix cache is in use: requests run");
  }
  scheduler.reset_prefix_cache();
  return {};
}

Result<bool> EngineControl::begin_drain() {
  if (drains_) {
    return fail(ErrorCode::kBusy, "pause: another pause waits for requests to end");
  }
  if (!paused_) {
    drains_ = true;
    loop_.hold_back();
  }
  return paused_.load();
}

Result<bool> EngineControl::poll_drain() {
  if (paused_) {
    return true;
  }
  if (!drains_) {
    return fail(ErrorCode::kInvalidArgument,
                "pause: the engine was resumed before its requests had ended");
  }
  const SchedulerStats stats = loop_.scheduler().stats();
  if (stats.num_running + stats.num_waiting > 0) {
    return false;
  }
  return pause(true).map([] { return true; });
}

void EngineControl::end_drain() {
  if (drains_) {
    drains_ = false;
    loop_.let_in();
  }
}

Result<void> EngineControl::pause(bool keeps) {
  if (keeps) {
    loop_.settle();
  } else {
    loop_.end_all();
  }
  paused_ = true;
  end_drain();
  pause_or_resume();
  return {};
}

Result<void> EngineControl::resume() {
  paused_ = false;
  end_drain();
  pause_or_resume();
  return {};
}

Result<void> EngineControl::update_weights(const std::string& model) {
  if (!paused_) {
    return fail(ErrorCode::kInvalidArgument, "update_weights: the engine runs; pause it first");
  }
  if (!state_.awake()) {
    return fail(ErrorCode::kInvalidArgument, "update_weights: the engine sleeps; wake it up first");
  }
  if (const auto fits = ask_ranks(executor_, CheckWeights{{}, model}); !fits) {
    return fail(fits.error().code, "update_weights: " + fits.error().message);
  }
  loop_.scheduler().forget_computed();
  if (const auto loaded = ask_ranks(executor_, LoadWeights{{}, model}); !loaded) {
    // Some ranks may have them already.
    (void)executor_.call(LoadWeights{{}, weights_}).get();
    return fail(loaded.error().code, "update_weights: " + loaded.error().message);
  }
  weights_ = model;
  return {};
}

void EngineControl::pause_or_resume() {
  if (state_.awake() && !paused_) {
    loop_.resume();
  } else {
    loop_.pause(state_.weights_gone() ? kWeightsAreGone : nullptr);
  }
}

}  // namespace warprow
