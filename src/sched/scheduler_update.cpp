// SPDX-License-Identifier: Apache-2.0
// The way back: what a step's output means for the requests it ran for.
#include "base/check.h"
#include "sched/scheduler.h"

#include <algorithm>

namespace warprow {

void Scheduler::update_from_output(const ModelRunnerOutput& out,
                                   std::vector<RequestDelta>& deltas) {
  deltas.clear();
  WR_CHECK_GT(num_in_flight_, 0);
  const int64_t step = next_step_ - num_in_flight_;
  WR_CHECK_EQ(out.step, step);
  StepRecord& record = records_[static_cast<size_t>(step % config_.max_concurrent_steps)];
  for (const RowOutput& row : out.rows) {
    const auto row_idx = static_cast<size_t>(index_of(row.row));
    WR_CHECK_LT(row_idx, record.rows.size());
    PlannedRow& planned = record.rows[row_idx];
    if (planned.step != step || planned.generation != row.generation || !planned.samples) {
      continue;  // a stale result, or a prefill chunk that yields nothing
    }
    planned.samples = false;
    --record.num_sampling;
    if (requests_[planned.index].arrival != planned.arrival) {
      continue;  // it ended while the step was in flight
    }
    RequestDelta& delta = deltas.emplace_back();
    delta.id = requests_[planned.index].id;
    delta.grammar = requests_[planned.index].grammar;
    delta.tokens = row.tokens;
    delta.prompt_logprobs = row.prompt_logprobs;
    delta.hidden = row.hidden;
    delta.num_cached_tokens = requests_[planned.index].num_cached_tokens;
    if (row.failure != RowFailure::kNone) {
      delta.failure = row.failure;
      delta.reason = FinishReason::kError;
      end(planned.index);
      continue;
    }
    WR_CHECK_EQ(row.tokens.count, 1);
    take_token(planned.index, out.token_ids[static_cast<size_t>(row.tokens.begin)], delta);
  }
  WR_CHECK(record.num_sampling == 0, "step {}: no result for {} rows", step, record.num_sampling);
  kv_.complete(step);
  --num_in_flight_;
}

void Scheduler::take_token(int32_t index, TokenId token, RequestDelta& delta) {
  LiveRequest& r = requests_[index];
  r.tokens.push_back(token);
  --r.num_pending;
  delta.reason = finish_reason(r, token, delta.stop_token_id);
  if (r.num_confirmed() >= r.kv.cache_at) {
    kv_.cache_full_blocks(r.kv, r.tokens, r.num_confirmed());
  }
  if (delta.reason != FinishReason::kNone) {
    end(index);
  }
}

const Scheduler::PlannedRow& Scheduler::last_plan(RowId row) const {
  const StepRecord& record =
      records_[static_cast<size_t>(last_step() % config_.max_concurrent_steps)];
  const PlannedRow& planned = record.rows[static_cast<size_t>(index_of(row))];
  WR_CHECK_EQ(planned.step, last_step());
  return planned;
}

int32_t Scheduler::grammar_of(RowId row) const {
  const PlannedRow& planned = last_plan(row);
  const LiveRequest& r = requests_[planned.index];
  return r.arrival == planned.arrival ? r.grammar : -1;
}

void Scheduler::withhold(RowId row) {
  StepRecord& record = records_[static_cast<size_t>(last_step() % config_.max_concurrent_steps)];
  PlannedRow& planned = record.rows[static_cast<size_t>(index_of(row))];
  LiveRequest& r = requests_[planned.index];
  WR_CHECK(planned.step == last_step() && planned.samples && r.arrival == planned.arrival,
           "row {} does not sample in the last step",
           index_of(row));
  planned.samples = false;
  --record.num_sampling;
  --r.num_computed;
  --r.num_pending;
  r.held = true;
}

void Scheduler::resume(uint64_t id) {
  const int32_t index = requests_.find(id);
  if (index >= 0) {
    requests_[index].held = false;
  }
}

FinishReason Scheduler::finish_reason(const LiveRequest& request,
                                      TokenId token,
                                      TokenId& stop_token_id) {
  const auto has = [token](const std::vector<TokenId>& ids) {
    return std::find(ids.begin(), ids.end(), token) != ids.end();
  };
  if (request.num_known() > request.stop_from_len) {
    if (has(request.eos_token_ids)) {
      return FinishReason::kStop;
    }
    if (has(request.stop_token_ids)) {
      stop_token_id = token;
      return FinishReason::kStop;
    }
  }
  return request.num_known() >= request.max_len ? FinishReason::kLength : FinishReason::kNone;
}

}  // namespace warprow
