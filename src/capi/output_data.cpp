// SPDX-License-Identifier: Apache-2.0
#include "capi/output_data.h"

#include <type_traits>
#include <utility>
#include <variant>

namespace warprow {
namespace {

static_assert(std::is_same_v<TokenId, int32_t>);

int32_t finish_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::kNone:
      return WARPROW_FINISH_NONE;
    case FinishReason::kStop:
      return WARPROW_FINISH_STOP;
    case FinishReason::kLength:
      return WARPROW_FINISH_LENGTH;
    case FinishReason::kAbort:
      return WARPROW_FINISH_ABORT;
    case FinishReason::kError:
      break;
  }
  return WARPROW_FINISH_ERROR;
}

}  // namespace

LogprobLists::LogprobLists(const std::vector<LogprobEntry>& lists) {
  begins_.push_back(0);
  for (const LogprobEntry& list : lists) {
    entries_.push_back({list.token_id, list.logprob, list.rank});
    int32_t rank = 0;
    for (const TokenLogprob& top : list.top) {
      entries_.push_back({top.token_id, top.logprob, ++rank});
    }
    begins_.push_back(entries_.size());
  }
}

warprow_logprobs LogprobLists::view() const {
  return {entries_.data(), begins_.data(), begins_.size() - 1};
}

OutputData::OutputData(const OutputPlace& place, RequestUpdate update, SharedPrompt prompt)
    : update_(std::move(update)),
      prompt_(std::move(prompt)),
      logprobs_(update_.logprobs),
      prompt_logprobs_(update_.prompt_logprobs) {
  view_.request = place.request;
  view_.choice = place.choice;
  view_.num_choices = place.num_choices;
  view_.is_last = place.is_last ? 1 : 0;
  view_.finish_reason = finish_of(update_.finish_reason);
  view_.text = update_.text.c_str();
  view_.text_len = update_.text.size();
  view_.token_ids = update_.token_ids.data();
  view_.num_token_ids = update_.token_ids.size();
  view_.logprobs = logprobs_.view();
  view_.prompt_logprobs = prompt_logprobs_.view();
  view_.prompt_token_ids = prompt_->data();
  view_.num_prompt_token_ids = prompt_->size();
  const auto* text = std::get_if<std::string>(&update_.stop_reason);
  const auto* token = std::get_if<int64_t>(&update_.stop_reason);
  view_.stop_string = text != nullptr ? text->c_str() : nullptr;
  view_.stop_token_id = token != nullptr ? static_cast<int32_t>(*token) : -1;
  if (update_.finish_reason == FinishReason::kError) {
    view_.error_status = update_.error_is_clients ? WARPROW_INVALID_ARGUMENT : WARPROW_INTERNAL;
    view_.error = update_.error.c_str();
  }
  view_.num_cached_tokens = update_.num_cached_tokens;
  view_.num_output_tokens = update_.num_output_tokens;
  view_.queue_ms = update_.timings.queue_ms;
  view_.prompt_ms = update_.timings.prompt_ms;
  view_.output_ms = update_.timings.predicted_ms;
  view_.pooled = update_.pooled.data();
  view_.num_pooled = update_.pooled.size();
  view_.pooled_width = update_.pooled_width;
}

}  // namespace warprow
