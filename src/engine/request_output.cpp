// SPDX-License-Identifier: Apache-2.0
#include "engine/request_output.h"

#include "base/check.h"
#include "engine/pooling.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>

namespace warprow {
namespace {

double ms_between(EngineClock::time_point from, EngineClock::time_point to) {
  return std::chrono::duration<double, std::milli>(to - from).count();
}

LogprobEntry logprob_entry(const OutputBatch& batch, TokenId token, const TokenLogprobs& logprobs) {
  LogprobEntry entry;
  entry.token_id = token;
  entry.logprob = logprobs.logprob;
  entry.rank = logprobs.rank;
  for (int32_t i = logprobs.top.begin; i < logprobs.top.begin + logprobs.top.count; ++i) {
    const auto at = static_cast<size_t>(i);
    entry.top.push_back({batch.top_ids[at], batch.top_logprobs[at]});
  }
  return entry;
}

}  // namespace

RequestOutput::RequestOutput(RequestId id,
                             const RequestFields& fields,
                             const Tokenizer& tokenizer,
                             UpdateCallback on_update)
    : detokenizer_(tokenizer,
                   {.skip_special = fields.skip_special_tokens,
                    .continues = true,
                    .spaces_between_special = fields.spaces_between_special_tokens}),
      stops_(fields.stop, fields.include_stop_str_in_output),
      min_tokens_(fields.params.min_tokens),
      show_stop_token_(fields.include_stop_str_in_output),
      wants_logprobs_(fields.params.num_logprobs >= 0),
      prompt_(fields.params.num_prompt_logprobs >= 0 ? fields.prompt_token_ids
                                                     : std::vector<TokenId>()),
      vector_form_(fields.pooling.value_or(VectorForm())),
      on_update_(std::move(on_update)),
      arrived_(EngineClock::now()) {
  update_.id = id;
  update_.num_prompt_tokens = static_cast<int32_t>(fields.prompt_token_ids.size());
}

bool RequestOutput::take(const OutputBatch& batch, const OutputDelta& delta) {
  begin_update();
  note_times(delta);
  take_prompt(batch, delta);
  take_vectors(batch, delta);
  int32_t num_taken = 0;
  while (num_taken < delta.tokens.count && !stops_.match()) {
    take_token(batch, delta, num_taken++);
  }
  if (!update_.hidden_states.empty()) {  // the last vectors belong to the outputs, one each
    update_.hidden_states.resize(
        update_.hidden_states.size() -
        static_cast<size_t>((delta.tokens.count - num_taken) * update_.hidden_width));
  }
  if (delta.reason != FinishReason::kNone && !stops_.match()) {
    take_text(detokenizer_.flush());
  }
  const bool ended = delta.reason != FinishReason::kNone || stops_.match();
  if (ended) {
    finish(delta);
    check_vectors();
  }
  on_update_(update_);
  return ended;
}

void RequestOutput::end(FinishReason reason, const std::string& error) {
  begin_update();
  OutputDelta delta;
  delta.reason = reason;
  delta.at = EngineClock::now();
  delta.num_cached_tokens = update_.num_cached_tokens;
  take_text(detokenizer_.flush());
  finish(delta);
  update_.error = error;
  on_update_(update_);
}

void RequestOutput::begin_update() {
  update_.text.clear();
  update_.token_ids.clear();
  update_.logprobs.clear();
  update_.prompt_logprobs.clear();
  update_.hidden_states.clear();
  update_.pooled.clear();
}

void RequestOutput::note_times(const OutputDelta& delta) {
  if (delta.tokens.count == 0 && delta.pooled.count == 0) {
    return;
  }
  if (!has_output_) {
    has_output_ = true;
    started_ = delta.started;
    first_token_ = delta.at;
    update_.timings.queue_ms = ms_between(arrived_, started_);
    update_.timings.prompt_ms = ms_between(started_, first_token_);
  }
  update_.num_cached_tokens = delta.num_cached_tokens;
  update_.timings.predicted_ms = ms_between(first_token_, delta.at);
}

// Adds a delta's prompt logprobs and hidden states to the update.
void RequestOutput::take_prompt(const OutputBatch& batch, const OutputDelta& delta) {
  const Span32 entries = delta.prompt_logprobs;
  for (int32_t i = 0; i < entries.count; ++i) {
    const TokenId token = prompt_[static_cast<size_t>(i) + 1];
    const auto at = static_cast<size_t>(entries.begin) + static_cast<size_t>(i);
    update_.prompt_logprobs.push_back(logprob_entry(batch, token, batch.logprobs[at]));
  }
  if (delta.hidden.count > 0) {
    update_.hidden_width = batch.hidden_states.width;
    const auto begin =
        batch.hidden_states.values.begin() + int64_t{delta.hidden.begin} * update_.hidden_width;
    update_.hidden_states.assign(begin, begin + int64_t{delta.hidden.count} * update_.hidden_width);
  }
}

// Adds a pooling request's vectors to the update.
void RequestOutput::take_vectors(const OutputBatch& batch, const OutputDelta& delta) {
  if (delta.pooled.count == 0) {
    return;
  }
  const auto width = static_cast<size_t>(batch.pooled.width);
  for (int32_t i = 0; i < delta.pooled.count; ++i) {
    const size_t first = static_cast<size_t>(delta.pooled.begin + i) * width;
    append_vector(
        std::span(batch.pooled.values).subspan(first, width), vector_form_, update_.pooled);
  }
  update_.pooled_width = vector_form_.dimensions > 0 ? vector_form_.dimensions : batch.pooled.width;
}

// A value that is not finite ends the request with an error: JSON cannot write it.
void RequestOutput::check_vectors() {
  if (!std::ranges::all_of(update_.pooled, [](float value) { return std::isfinite(value); })) {
    update_.pooled.clear();
    update_.finish_reason = FinishReason::kError;
    update_.error = "the model's vector has a value that is not finite";
  }
}

void RequestOutput::take_token(const OutputBatch& batch, const OutputDelta& delta, int32_t index) {
  const TokenId token = batch.tokens_of(delta)[static_cast<size_t>(index)];
  update_.token_ids.push_back(token);
  ++update_.num_output_tokens;
  if (wants_logprobs_) {
    WR_CHECK_GE(delta.logprobs_at, 0);
    const auto at = static_cast<size_t>(delta.logprobs_at) + static_cast<size_t>(index);
    update_.logprobs.push_back(logprob_entry(batch, token, batch.logprobs[at]));
  }
  // The token that ends a request is not part of its answer, even if it has text; as in vLLM.
  const bool ends_it = delta.reason == FinishReason::kStop && index == delta.tokens.count - 1;
  if (!ends_it || show_stop_token_) {
    take_text(detokenizer_.push(token));
  }
}

void RequestOutput::take_text(const std::string& text) {
  if (!text.empty()) {
    update_.text += stops_.push(text, update_.num_output_tokens > min_tokens_);
  }
}

void RequestOutput::finish(const OutputDelta& delta) {
  // A stop string takes precedence over any other reason at the same token.
  if (stops_.match()) {
    update_.finish_reason = FinishReason::kStop;
    update_.stop_reason = std::string(stops_.matched());
  } else {
    update_.text += stops_.flush();
    update_.finish_reason = delta.reason;
    update_.error = delta.error;
    update_.error_is_clients = delta.error_is_clients;
    if (delta.reason == FinishReason::kStop && delta.stop_token_id >= 0) {
      update_.stop_reason = int64_t{delta.stop_token_id};
    }
  }
  if (!has_output_) {
    update_.timings.queue_ms = ms_between(arrived_, delta.at);
  }
}

}  // namespace warprow
