// SPDX-License-Identifier: Apache-2.0
#include "cli/chat/chat_partner.h"

#include "cli/api_event.h"
#include "cli/commands/single_run.h"
#include "cli/flags/sampling_fields.h"
#include "cli/flags/server_flags.h"
#include "cli/note.h"
#include "cli/run_summary.h"
#include "client/event_stream.h"

#include <algorithm>
#include <utility>

namespace warprow {
namespace {

// Interval of checks for a signal while the server sends nothing.
constexpr std::chrono::milliseconds kInterruptGlance{50};

}  // namespace

ChatReply EngineChat::answer(const std::vector<ChatMessage>& messages, Output& out) {
  GenerationRequest request;
  request.prompt = messages;
  request.sampling = sampling_;
  Result<ValidRequest> valid = engine_.validate(request);
  if (!valid) {
    return {.error = valid.error().message, .is_refused = true};
  }
  Answer answer = stream_answers(engine_, updates_, *valid, &out).front();
  const bool failed = answer.finish_reason == FinishReason::kError;
  return {.text = std::move(answer.text),
          .num_tokens = answer.num_output_tokens,
          .is_cut = answer.finish_reason == FinishReason::kLength,
          .error = failed ? answer.error : ""};
}

std::string EngineChat::counters() const { return stats_text(engine_.stats()); }

ServerChat::ServerChat(HttpClient& client,
                       const UpdateQueue& updates,
                       std::string model,
                       const SamplingOptions& sampling)
    : client_(client), updates_(updates), body_(sampling_json(sampling)) {
  body_.erase("n");
  body_.erase("logprobs");
  body_["model"] = std::move(model);
  body_["stream"] = true;
  body_["stream_options"] = {{"include_usage", true}};
}

ChatReply ServerChat::answer(const std::vector<ChatMessage>& messages, Output& out) {
  nlohmann::json body = body_;
  for (const ChatMessage& message : messages) {
    body["messages"].push_back({{"role", message.role}, {"content", message.content}});
  }
  ChatReply reply;
  int64_t num_pieces = 0;
  EventStream events;
  const auto take = [&](std::string_view data) {
    const std::optional<ApiEvent> event = read_api_event(data);
    if (!event) {
      return;
    }
    reply.error += event->error;
    reply.is_cut |= event->finish_reason == "length";
    reply.num_tokens = event->num_output_tokens.value_or(reply.num_tokens);
    note("{}", event->reasoning);
    if (!event->text.empty()) {
      ++num_pieces;
      reply.text += event->text;
      out.write(event->text);
    }
  };
  const auto unwanted = [&] { return updates_.signal() != 0 || out.closed(); };
  std::optional<Result<HttpAnswer>> end;
  client_.start({.method = "POST",
                 .path = "/v1/chat/completions",
                 .body = body.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace),
                 .on_piece =
                     [&](std::string_view piece) {
                       events.feed(piece, take);
                       return !unwanted();
                     },
                 .on_end = [&end](Result<HttpAnswer> answer) { end = std::move(answer); }});
  while (client_.run_for(kInterruptGlance)) {
    if (unwanted()) {
      client_.drop_all();
    }
  }
  reply.num_tokens = std::max(reply.num_tokens, num_pieces);
  if (*end && (*end)->status != 200) {
    reply.error = refusal_text(**end);
    reply.is_refused = (*end)->status < 500;
  } else if (!*end && !unwanted()) {
    reply.error = end->error().message;
  }
  return reply;
}

}  // namespace warprow
