// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/endpoints/endpoints.h"
#include "server/metrics/server_watch.h"

#include <memory>
#include <shared_mutex>
#include <string_view>
#include <sys/types.h>
#include <utility>
#include <vector>

#include "capi/logits_callback.h"
#include "capi/status.h"

namespace warprow {

// The engine behind a warprow_engine, which its queues share.
//
// Owns: the engine until close().
// Thread: any. close() waits for calls that use the engine.
// Invariant: a forked copy touches nothing of the engine, whose threads run in the parent process.
class LoadedEngine {
 public:
  // Loads. Throws StartupError.
  explicit LoadedEngine(std::string_view settings, std::vector<LogitsCallback> rules = {});
  ~LoadedEngine();
  LoadedEngine(const LoadedEngine&) = delete;
  LoadedEngine& operator=(const LoadedEngine&) = delete;

  // Ends all requests and the engine.
  void close();
  // Whether this is a forked copy, whose engine runs in another process.
  [[nodiscard]] bool is_elsewhere() const;
  // The status of a call in such a copy.
  [[nodiscard]] warprow_status refuse_elsewhere() const;

  // Calls use(Served&), which returns a status, unless the engine is closed or elsewhere.
  template <typename Use>
  warprow_status call(Use use) {
    if (is_elsewhere()) {
      return refuse_elsewhere();
    }
    const std::shared_lock lock(mutex_);
    if (!served_) {
      return fail_call(WARPROW_CLOSED, "the engine was closed");
    }
    return use(*served_);
  }

 private:
  pid_t owner_;
  ServerWatch watch_;  // outlives the engine
  ApiOptions options_;
  std::vector<LogitsCallback> rules_;  // outlive the engine
  std::shared_mutex mutex_;
  std::unique_ptr<Engine> engine_;  // under mutex_
  std::unique_ptr<Served> served_;  // under mutex_
};

}  // namespace warprow
