// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/engine.h"
#include "server/metrics/server_metrics.h"
#include "server/metrics/trace_context.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace warprow {

// State that the choices of one prompt share. Written on the engine's output thread.
struct ChoiceGroup {
  int32_t num_running = 0;
  int32_t most_output_toks = 0;
};

// The current state of one choice of an answer.
struct ChoiceRecord {
  std::string answer;         // the id that the client sees
  std::string owner = {};     // the API key that made it; empty: none was needed
  const char* endpoint = "";  // "chat", ...
  int32_t choice = 0;
  RequestId id = 0;  // the engine's
  EngineClock::time_point arrived;
  EngineClock::time_point first_token;  // this and the next two are 0 until they happen
  EngineClock::time_point last_token;
  EngineClock::time_point ended;
  int32_t num_prompt_toks = 0;
  int32_t num_output_toks = 0;
  int32_t num_cached_toks = 0;
  int32_t max_tokens = 0;
  double queue_ms = 0;  // set with ended, like the next two
  double prompt_ms = 0;
  double predicted_ms = 0;
  FinishReason finish_reason = FinishReason::kNone;
  std::shared_ptr<const RequestTrace> trace = {};  // null: no span is made of it
  std::shared_ptr<ChoiceGroup> group = {};         // null: not counted with others
};

class RequestJournal;

// Follows one choice from its submission to its end.
//
// Thread: note runs on the engine's output thread, the rest on any.
class ChoiceProbe {
 public:
  ChoiceProbe(RequestJournal& journal, ServerMetrics& metrics, ChoiceRecord record)
      : journal_(journal), metrics_(metrics), record_(std::move(record)) {}

  // So that the choice has its id while it waits for its first update.
  void set_id(RequestId id);
  void note(const RequestUpdate& update);
  [[nodiscard]] ChoiceRecord record() const;

 private:
  void note_end(const RequestUpdate& update);

  RequestJournal& journal_;
  ServerMetrics& metrics_;
  mutable std::mutex mutex_;
  ChoiceRecord record_;  // under mutex_
};

// Records the live choices and the newest ended ones. Also limits the number of live choices.
//
// Owns: nothing of the engine. Thread: any. Outlives the engine, whose callbacks use the probes.
class RequestJournal {
 public:
  static constexpr size_t kMaxEnded = 4096;

  explicit RequestJournal(ServerMetrics& metrics) : metrics_(metrics) {}

  // Sets a listener for each choice that ends. Call it before the first begin().
  void on_end(std::function<void(const ChoiceRecord&)> listener) { on_end_ = std::move(listener); }

  // Reserves places for num_choices more choices; false if more than `limit` would be live. Each begin() uses one
  // place.
  bool reserve(int64_t num_choices, int64_t limit);
  std::shared_ptr<ChoiceProbe> begin(ChoiceRecord record);

  [[nodiscard]] int64_t num_live() const { return num_live_.load(std::memory_order_relaxed); }
  // In no particular order.
  [[nodiscard]] std::vector<ChoiceRecord> live() const;
  // The choices of the newest answer of this owner with this id, in their order; id: the answer's, or the request's,
  // which follows the first '-' of it.
  [[nodiscard]] std::vector<ChoiceRecord> find(std::string_view id, std::string_view owner) const;
  // The choices that ended at `when` or later, in the order in which they ended, then the live ones. One that ends
  // meanwhile is there once.
  [[nodiscard]] std::vector<ChoiceRecord> seen_since(EngineClock::time_point when) const;

 private:
  using Probes = std::vector<std::shared_ptr<ChoiceProbe>>;
  friend class ChoiceProbe;
  void end(const ChoiceProbe* probe, ChoiceRecord record);
  [[nodiscard]] Probes live_probes() const;  // under mutex_

  ServerMetrics& metrics_;
  std::function<void(const ChoiceRecord&)> on_end_;
  std::atomic<int64_t> num_live_ = 0;
  mutable std::mutex mutex_;
  // mutex_ guards both. The engine's callbacks share the probes and may hold them a moment longer.
  std::unordered_map<const ChoiceProbe*, std::shared_ptr<ChoiceProbe>> live_;
  std::deque<ChoiceRecord> ended_;
};

}  // namespace warprow
