// SPDX-License-Identifier: Apache-2.0
// Applies a step's output to the requests that it ran for.
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
    const bool has_result = row.kind == RowResult::kTokens || row.kind == RowResult::kPooled;
    if (planned.step != step || planned.generation != row.generation || planned.num_logits == 0 ||
        !has_result) {
      continue;  // a stale result, or a row that yields nothing
    }
    const PlannedRow taken = planned;
    planned.num_logits = 0;
    --record.num_sampling;
    LiveRequest& r = requests_[taken.index];
    if (r.arrival != taken.arrival) {
      continue;  // it ended while the step was in flight
    }
    take_result(taken, row, out, r, deltas.emplace_back());
  }
  WR_CHECK(record.num_sampling == 0, "step {}: no result for {} rows", step, record.num_sampling);
  kv_.complete(step);
  taken_step_ = step;
  --num_in_flight_;
}

void Scheduler::take_result(const PlannedRow& planned,
                            const RowOutput& row,
                            const ModelRunnerOutput& out,
                            LiveRequest& r,
                            RequestDelta& delta) {
  const bool failed = row.failure != RowFailure::kNone;
  const bool pooled = row.kind == RowResult::kPooled;
  WR_CHECK(pooled == r.params.is_pooled(), "row {}: a result of another kind", index_of(row.row));
  WR_CHECK(failed || pooled ||
               (row.tokens.count >= 1 && row.tokens.count + row.num_rejected == planned.num_logits),
           "row {}: {} tokens and {} rejected of {} logits",
           index_of(row.row),
           row.tokens.count,
           row.num_rejected,
           planned.num_logits);
  delta.id = r.id;
  delta.row = row.row;
  delta.generation = row.generation;
  delta.grammar = r.grammar;
  delta.prompt_logprobs = row.prompt_logprobs;
  delta.hidden = row.hidden;
  delta.pooled = row.pooled;
  delta.drafts = row.drafts;
  delta.num_cached_tokens = r.num_cached_tokens;
  if (planned.num_logits > 1) {
    count_drafts(planned.num_logits - 1, std::max(row.tokens.count - 1, 0));
  }
  r.drafts.take(slice(out.token_ids, row.tokens),
                planned.num_logits - 1,
                slice(out.draft_token_ids, row.drafts));
  --r.least_pending;
  r.most_pending -= planned.num_logits;
  if (r.state == LiveRequest::State::kRunning) {  // a preempted request has nothing computed
    r.num_computed -= planned.num_logits - row.tokens.count;
  }
  const TokenId* const ids = out.token_ids.data() + row.tokens.begin;
  FinishReason reason = pooled ? FinishReason::kStop : FinishReason::kNone;
  int32_t num_taken = 0;
  while (num_taken < row.tokens.count && reason == FinishReason::kNone) {
    const TokenId token = ids[num_taken++];
    r.tokens.push_back(token);
    reason = finish_reason(r, token, delta.stop_token_id);
  }
  delta.tokens = {row.tokens.begin, num_taken};
  delta.reason = reason;
  if (delta.hidden.count > 0) {  // the last vectors belong to the outputs, one each
    delta.hidden.count -= row.tokens.count - delta.tokens.count;
  }
  if (failed && delta.reason == FinishReason::kNone) {
    delta.failure = row.failure;
    delta.reason = FinishReason::kError;
  }
  if (!failed && r.num_confirmed() >= r.kv.cache_at) {
    kv_.cache_full_blocks(r.kv, r.tokens, r.num_confirmed());
  }
  if (delta.reason != FinishReason::kNone) {
    if (!failed) {
      kv_.cache_tail(r.kv, r.tokens, r.num_confirmed());
    }
    end(planned.index);
  }
}

void Scheduler::count_drafts(int32_t num_drafted, int32_t num_accepted) {
  ++stats_.num_drafts;
  stats_.num_drafted_tokens += num_drafted;
  stats_.num_accepted_tokens += num_accepted;
  for (size_t i = 0; i < static_cast<size_t>(num_accepted); ++i) {
    ++stats_.num_accepted_at[i];
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
  WR_CHECK(planned.step == last_step() && planned.num_logits > 0 && r.arrival == planned.arrival,
           "row {} does not sample in the last step",
           index_of(row));
  r.num_computed -= planned.num_logits;
  --r.least_pending;
  r.most_pending -= planned.num_logits;
  planned.num_logits = 0;
  --record.num_sampling;
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
    return !ids.empty() && std::find(ids.begin(), ids.end(), token) != ids.end();
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
