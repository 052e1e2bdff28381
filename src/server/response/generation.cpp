// SPDX-License-Identifier: Apache-2.0
#include "server/response/generation.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace warprow {
namespace {

// OpenAI has no finish reason for an error or an abort, so the response is an error.
std::optional<ApiError> failure_of(const RequestUpdate& update) {
  if (update.finish_reason == FinishReason::kError) {
    return update.error_is_clients
               ? ApiError{400, "invalid_request_error", update.error}
               : ApiError{500, "internal_error", "the request failed: " + update.error};
  }
  if (update.finish_reason == FinishReason::kAbort) {
    return ApiError{503, "service_unavailable", "the server ended the request before its answer"};
  }
  return std::nullopt;
}

}  // namespace

Generation::Generation(Engine& engine,
                       const std::vector<ValidRequest>& prompts,
                       std::unique_ptr<AnswerWriter> writer,
                       Form form,
                       RequestJournal& journal,
                       std::function<void()> wake)
    : engine_(engine), writer_(std::move(writer)), form_(std::move(form)), journal_(journal) {
  std::vector<ValidRequest> requests;
  std::vector<std::shared_ptr<ChoiceGroup>> groups;  // of each request
  for (const ValidRequest& prompt : prompts) {
    std::vector<ValidRequest> choices = split_choices(prompt);
    const ChoiceGroup group{.num_running = static_cast<int32_t>(choices.size())};
    groups.resize(groups.size() + choices.size(), std::make_shared<ChoiceGroup>(group));
    std::ranges::move(choices, std::back_inserter(requests));
  }
  num_running_ = requests.size();
  choices_.resize(requests.size());
  box_ = std::make_shared<UpdateBox>(requests.size(), form_.stream, std::move(wake));
  ChoiceRecord record;
  record.answer = form_.id;
  record.owner = form_.owner;
  record.endpoint = form_.endpoint;
  record.arrived = EngineClock::now();
  record.trace = form_.trace;
  for (ValidRequest& request : requests) {
    record.choice = static_cast<int32_t>(ids_.size());
    record.num_prompt_toks = static_cast<int32_t>(request.prompt_token_ids().size());
    record.max_tokens = request.fields().max_tokens;
    record.group = groups[ids_.size()];
    submit(std::move(request), record);
  }
}

void Generation::submit(ValidRequest request, const ChoiceRecord& record) {
  std::shared_ptr<ChoiceProbe> probe = journal_.begin(record);
  const RequestId id = engine_.submit(
      std::move(request), [box = box_, probe, index = ids_.size()](const RequestUpdate& update) {
        probe->note(update);
        box->push(index, update);
      });
  probe->set_id(id);
  ids_.push_back(id);
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
        events += failure_ ? writer_->error_events(*failure_) : writer_->events(index, update);
      }
    }
    if (form_.stream) {
      update.text.clear();
      update.token_ids.clear();
      update.logprobs.clear();
      update.prompt_logprobs.clear();
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

std::string Generation::give_up(ApiError error) {
  if (finished()) {
    return "";
  }
  failure_ = std::move(error);
  return form_.stream ? writer_->error_events(*failure_) : "";
}

}  // namespace warprow
