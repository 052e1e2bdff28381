// SPDX-License-Identifier: Apache-2.0
#include "server/generation.h"

#include <utility>

namespace warprow {
namespace {

// OpenAI's finish reasons know neither: such an answer is an error.
std::optional<ApiError> failure_of(const RequestUpdate& update) {
  if (update.finish_reason == FinishReason::kError) {
    return ApiError{500, "internal_error", "the request failed: " + update.error};
  }
  if (update.finish_reason == FinishReason::kAbort) {
    return ApiError{503, "service_unavailable", "the server ended the request before its answer"};
  }
  return std::nullopt;
}

}  // namespace

Generation::Generation(Engine& engine,
                       const ValidRequest& request,
                       std::unique_ptr<AnswerWriter> writer,
                       Form form,
                       std::function<void()> wake)
    : engine_(engine), writer_(std::move(writer)), form_(std::move(form)) {
  std::vector<ValidRequest> requests = split_choices(request);
  num_running_ = requests.size();
  choices_.resize(requests.size());
  box_ = std::make_shared<UpdateBox>(requests.size(), form_.stream, std::move(wake));
  for (ValidRequest& choice : requests) {
    const size_t index = ids_.size();
    ids_.push_back(engine_.submit(
        std::move(choice),
        [box = box_, index](const RequestUpdate& update) { box->push(index, update); }));
  }
}

Generation::~Generation() {
  box_->close();
  for (size_t i = 0; i < ids_.size(); ++i) {
    if (choices_[i].finish_reason == FinishReason::kNone) {
      engine_.abort(ids_[i]);
    }
  }
}

std::string Generation::take() {
  std::string events;
  for (auto& [index, update] : box_->take()) {
    const bool ended = update.finish_reason != FinishReason::kNone;
    if (!failure_) {
      failure_ = failure_of(update);
      if (form_.stream) {
        events += failure_ ? error_events(*failure_) : writer_->events(index, update);
      }
    }
    if (form_.stream) {
      update.text.clear();
      update.token_ids.clear();
      update.logprobs.clear();
    }
    join_update(choices_[index], std::move(update));
    num_running_ -= ended ? 1 : 0;
    if (form_.stream && ended && num_running_ == 0 && !failure_) {
      events += writer_->last_events(choices_, form_.include_usage);
    }
  }
  return events;
}

HttpReply Generation::reply() {
  HttpReply reply = failure_ ? error_reply(*failure_) : HttpReply{.body = writer_->whole(choices_)};
  reply.headers = form_.headers;
  return reply;
}

}  // namespace warprow
