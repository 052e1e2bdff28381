// SPDX-License-Identifier: Apache-2.0
#include "engine/delivery.h"

namespace warprow {
namespace {

// The client's error text for a row without a token.
const char* failure_text(RowFailure failure) {
  switch (failure) {
    case RowFailure::kNone:
      break;
    case RowFailure::kBadLogits:
      return "no token can be drawn: the logits have a NaN or no finite maximum";
    case RowFailure::kNothingLeft:
      return "no token can be drawn: the request's constraints (allowed_token_ids, bad_words, "
             "min_tokens, penalties, structured_outputs) exclude every token";
  }
  return "";
}

}  // namespace

Delivery::Delivery(OutputQueue& outputs, size_t max_num_seqs, RequestLog& requests)
    : outputs_(outputs), requests_(requests) {
  batch_.reserve(outputs_.max_deltas());
  row_starts_.resize(max_num_seqs);
}

void Delivery::begin_rows(const SchedulerOutput& step, EngineClock::time_point now) {
  for (const NewRow& row : step.new_rows) {
    row_starts_[static_cast<size_t>(index_of(row.row))] = {row.generation, now};
  }
}

void Delivery::end(RequestId id, FinishReason reason, const char* error, bool error_is_clients) {
  requests_.end(id, reason);
  OutputDelta delta;
  delta.id = id;
  delta.reason = reason;
  delta.error = error;
  delta.error_is_clients = error_is_clients;
  delta.at = EngineClock::now();
  batch_.deltas.push_back(delta);
}

int64_t Delivery::add(std::span<const RequestDelta> deltas,
                      const ModelRunnerOutput& output,
                      EngineClock::time_point now) {
  int64_t num_toks = 0;
  for (const RequestDelta& delta : deltas) {
    const RowStart& start = row_starts_[static_cast<size_t>(index_of(delta.row))];
    OutputDelta& out = batch_.deltas.emplace_back();
    out.id = delta.id;
    out.tokens = delta.tokens;
    out.prompt_logprobs = delta.prompt_logprobs;
    out.hidden = delta.hidden;
    out.pooled = delta.pooled;
    out.reason = delta.reason;
    if (delta.failure != RowFailure::kNone) {
      out.error = failure_text(delta.failure);
      out.error_is_clients = delta.failure == RowFailure::kNothingLeft;
    }
    out.stop_token_id = delta.stop_token_id;
    out.num_cached_tokens = delta.num_cached_tokens;
    // A preempted request's row may have gone to another by now.
    out.started = start.generation == delta.generation ? start.at : now;
    out.at = now;
    batch_.copy_from(output, out);
    num_toks += delta.tokens.count;
  }
  return num_toks;
}

}  // namespace warprow
