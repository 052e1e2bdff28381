// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "engine/observe.h"
#include "sched/request.h"
#include "wire/scheduler_output.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace warprow {

// What happened to a request on the engine's thread. Steps in which it decodes are no events: they are the steps from
// its first token to its next preemption or end, of which StepLog has the newest.
struct RequestEvent {
  enum class Kind : uint8_t {
    kArrived,     // num: requests that waited already; other: that ran
    kAdmitted,    // num: tokens found in the prefix cache; other: tokens to compute or find
    kChunk,       // num: prompt tokens computed in these steps; other: computed before them
    kFirstToken,  // of its answer, or behind a preemption the next one
    kPreempted,   // num: tokens that were computed
    kHeld,        // its grammar's mask was late, so these steps drew no token
    kEnded,       // num: FinishReason
  };
  Kind kind = Kind::kArrived;
  int32_t num_steps = 0;  // that the event is about; 0: it is between steps
  int32_t num = 0;
  int32_t other = 0;
  int64_t first_step = 0;  // of these; else the last one before it
  int64_t last_step = 0;
  EngineClock::time_point at;
};

// One request's events in their order.
struct RequestHistory {
  static constexpr size_t kMaxEvents = 40;

  uint64_t id = 0;
  int32_t num_prompt_toks = 0;
  int32_t num_output_toks = 0;
  int32_t num_left_out = 0;  // events that found no place
  int32_t num_events = 0;
  std::array<RequestEvent, kMaxEvents> events;

  [[nodiscard]] std::span<const RequestEvent> list() const {
    return std::span(events).first(static_cast<size_t>(num_events));
  }
};

// The histories of the newest requests, so that a request can be explained after its end. A step costs a comparison for
// each row; what happens seldom (an admission, a chunk, a first token, an end) is written under a lock that readers
// take for a copy of one history.
//
// Owns: kCapacity histories, allocated at the start; a request's place follows from its id, so the newest kCapacity ids
// have one. What each row runs.
// Thread: find from any, the rest the engine's.
class RequestLog {
 public:
  static constexpr size_t kCapacity = 1024;

  explicit RequestLog(size_t max_num_seqs);

  // num_waiting, num_running: the requests before it.
  void arrive(const Request& request, int32_t num_waiting, int32_t num_running);
  // A step was planned. request_of: of the rows that are new in it.
  template <typename RequestOf>
  void plan(const SchedulerOutput& step, EngineClock::time_point now, const RequestOf& request_of) {
    if (!step.preempted_rows.empty()) {
      preempt(step, now);
    }
    for (const NewRow& row : step.new_rows) {
      admit(row, request_of(row.row), step.step, now);
    }
    for (const ScheduledRow& row : step.scheduled) {
      if (row.num_computed_tokens < rows_[static_cast<size_t>(index_of(row.row))].prefill_len) {
        add_chunk(row, step.step, now);
      }
    }
    planned_step_ = step.step;
  }
  // The rows yield nothing in the last planned step.
  void hold(std::span<const RowId> rows);
  // The outputs of a step were taken.
  void take(int64_t step, std::span<const RequestDelta> deltas, EngineClock::time_point now);
  // It ended between steps.
  void end(uint64_t id, FinishReason reason);

  // nullopt: unknown, or forgotten for newer ones.
  [[nodiscard]] std::optional<RequestHistory> find(uint64_t id) const;

 private:
  struct Row {
    uint64_t request = 0;
    int32_t prefill_len = 0;
    int32_t num_output_toks = 0;  // in this row
    bool has_token = false;
  };

  [[nodiscard]] Row& row_at(RowId row) { return rows_[static_cast<size_t>(index_of(row))]; }
  void preempt(const SchedulerOutput& step, EngineClock::time_point now);
  void admit(const NewRow& row, uint64_t request, int64_t step, EngineClock::time_point now);
  void add_chunk(const ScheduledRow& row, int64_t step, EngineClock::time_point now);
  // Under mutex_. Null for a request that was forgotten.
  [[nodiscard]] RequestHistory* history_of(uint64_t id);
  void add(uint64_t id, const RequestEvent& event);

  std::vector<Row> rows_;  // [max_num_seqs]
  int64_t planned_step_ = 0;
  mutable std::mutex mutex_;
  std::vector<RequestHistory> histories_;  // [kCapacity], under mutex_
};

}  // namespace warprow
