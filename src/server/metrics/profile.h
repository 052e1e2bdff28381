// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "engine/engine.h"
#include "server/metrics/server_watch.h"

#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace warprow {

// A profile of the engine: what trace_json() knows of the time between two calls, in a file for Perfetto. The records
// are kept anyway, so that a profile costs nothing while it runs. A long one has the last steps and requests alone.
//
// Thread: any.
class Profile {
 public:
  // dir: where the files are written; empty: every call is refused.
  explicit Profile(std::string dir = {}) : dir_(std::move(dir)) {}

  // Begins a profile, or begins it again. kUnsupported without a directory.
  Result<void> start();
  // Ends it and returns the path of its file, which the server's user alone can read. kInvalidArgument if none was
  // begun; kInternal with the reason if the file cannot be written.
  Result<std::string> stop(const Engine& engine, const ServerWatch& watch);

 private:
  const std::string dir_;
  std::mutex mutex_;
  std::optional<EngineClock::time_point> since_;  // under mutex_
};

}  // namespace warprow
