// SPDX-License-Identifier: Apache-2.0
#include "engine/request_log.h"

namespace warprow {
namespace {

using Kind = RequestEvent::Kind;

// The last places are reserved for other events than chunks: later chunks are added to the last one.
constexpr int32_t kMaxChunksUntil = static_cast<int32_t>(RequestHistory::kMaxEvents) - 12;

}  // namespace

RequestLog::RequestLog(size_t max_num_seqs) : rows_(max_num_seqs), histories_(kCapacity) {}

RequestHistory* RequestLog::history_of(uint64_t id) {
  RequestHistory& history = histories_[id % kCapacity];
  return history.id == id && id != 0 ? &history : nullptr;
}

void RequestLog::add(uint64_t id, const RequestEvent& event) {
  const std::scoped_lock lock(mutex_);
  RequestHistory* const history = history_of(id);
  if (history == nullptr) {
    return;
  }
  const auto count = static_cast<size_t>(history->num_events);
  RequestEvent* const last = count > 0 ? &history->events[count - 1] : nullptr;
  const bool joins = last != nullptr && last->kind == event.kind && history->num_left_out == 0 &&
                     (event.kind == Kind::kHeld ||
                      (event.kind == Kind::kChunk && history->num_events > kMaxChunksUntil));
  if (joins) {
    last->num += event.num;
    last->num_steps += event.num_steps;
    last->last_step = event.last_step;
  } else if (count < RequestHistory::kMaxEvents - (event.kind == Kind::kEnded ? 0 : 1)) {
    history->events[count] = event;
    ++history->num_events;
  } else {
    ++history->num_left_out;
  }
}

void RequestLog::arrive(const Request& request, int32_t num_waiting, int32_t num_running) {
  {
    const std::scoped_lock lock(mutex_);
    RequestHistory& history = histories_[request.id % kCapacity];
    history.id = request.id;
    history.num_prompt_toks = static_cast<int32_t>(request.prompt.size());
    history.num_output_toks = history.num_left_out = history.num_events = 0;
  }
  add(request.id,
      {.kind = Kind::kArrived,
       .num = num_waiting,
       .other = num_running,
       .first_step = planned_step_,
       .last_step = planned_step_,
       .at = EngineClock::now()});
}

void RequestLog::preempt(const SchedulerOutput& step, EngineClock::time_point now) {
  for (const RowId id : step.preempted_rows) {
    Row& row = row_at(id);
    add(row.request,
        {.kind = Kind::kPreempted,
         .num = row.prefill_len + row.num_output_toks,
         .first_step = step.step,
         .last_step = step.step,
         .at = now});
    row = {};
  }
}

void RequestLog::admit(const NewRow& row,
                       uint64_t request,
                       int64_t step,
                       EngineClock::time_point now) {
  row_at(row.row) = {.request = request, .prefill_len = row.prefill_len};
  add(request,
      {.kind = Kind::kAdmitted,
       .num = row.num_computed_tokens,
       .other = row.prefill_len,
       .first_step = step,
       .last_step = step,
       .at = now});
}

void RequestLog::add_chunk(const ScheduledRow& row, int64_t step, EngineClock::time_point now) {
  add(row_at(row.row).request,
      {.kind = Kind::kChunk,
       .num_steps = 1,
       .num = row.num_tokens,
       .other = row.num_computed_tokens,
       .first_step = step,
       .last_step = step,
       .at = now});
}

void RequestLog::hold(std::span<const RowId> rows) {
  for (const RowId row : rows) {
    add(row_at(row).request,
        {.kind = Kind::kHeld,
         .num_steps = 1,
         .first_step = planned_step_,
         .last_step = planned_step_,
         .at = EngineClock::now()});
  }
}

void RequestLog::take(int64_t step,
                      std::span<const RequestDelta> deltas,
                      EngineClock::time_point now) {
  for (const RequestDelta& delta : deltas) {
    Row& row = row_at(delta.row);
    const bool is_its_row = row.request == delta.id;  // not if it was preempted meanwhile
    const bool is_first = is_its_row && !row.has_token && delta.tokens.count > 0;
    if (is_its_row) {
      row.num_output_toks += delta.tokens.count;
      row.has_token = row.has_token || delta.tokens.count > 0;
    }
    RequestEvent event{.first_step = step, .last_step = step, .at = now};
    if (is_first) {
      event.kind = Kind::kFirstToken;
      add(delta.id, event);
    }
    if (delta.reason != FinishReason::kNone) {
      event.kind = Kind::kEnded;
      event.num = static_cast<int32_t>(delta.reason);
      add(delta.id, event);
    }
  }
}

void RequestLog::end(uint64_t id, FinishReason reason) {
  add(id,
      {.kind = Kind::kEnded,
       .num = static_cast<int32_t>(reason),
       .first_step = planned_step_,
       .last_step = planned_step_,
       .at = EngineClock::now()});
}

std::optional<RequestHistory> RequestLog::find(uint64_t id) const {
  const std::scoped_lock lock(mutex_);
  const RequestHistory& history = histories_[id % kCapacity];
  return history.id == id && id != 0 ? std::optional(history) : std::nullopt;
}

}  // namespace warprow
