// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/metrics/request_journal.h"
#include "server/metrics/server_metrics.h"

#include <atomic>
#include <optional>
#include <string>

namespace warprow {

// The server's metrics and request records.
//
// Thread: any. Outlives the engine, whose callbacks write here until it ends.
struct ServerWatch {
  ServerMetrics metrics;
  RequestJournal journal{metrics};
  EngineClock::time_point started = EngineClock::now();
  std::atomic<bool> draining = false;  // the server takes no new requests
};

// The names that the engine state shows.
struct ServerNames {
  std::string model;
  std::string version;
};

// An engine that stays this long in one phase of a step counts as stuck.
inline constexpr double kDefaultStallSeconds = 4.0;

// "" if the engine can make progress, else the cause in one line that names the phase.
std::string engine_trouble(const EngineProgress& progress, double stall_seconds);

// GET /v1/engine/state; see docs/server.md for the fields. Waits briefly for the engine thread. ended: with the newest
// choices that ended since then; nullopt: without them.
std::string engine_state_json(Engine& engine,
                              const ServerWatch& watch,
                              const ServerNames& names,
                              double stall_seconds,
                              std::optional<EngineClock::time_point> ended = std::nullopt);

// The steps, mask fills and requests since then as Chrome's trace events, which Perfetto opens.
std::string trace_json(const Engine& engine,
                       const ServerWatch& watch,
                       EngineClock::time_point since);

}  // namespace warprow
