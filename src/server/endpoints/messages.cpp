// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API: /v1/messages and /v1/messages/count_tokens.
#include "server/endpoints/chat_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/messages_body.h"
#include "server/endpoints/messages_error.h"
#include "server/endpoints/writers.h"

#include <memory>
#include <string_view>
#include <utility>
#include <variant>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

Result<GenerationBody> parse_messages(std::string_view text) {
  return parse_messages_body(text, false).and_then([](const OrderedJson& chat) {
    return read_chat_body(chat, "");
  });
}

// Notes the prompt's length, which the first event of a stream reports.
EncodedPrompts prepare(const Served& served, GenerationBody& body) {
  EncodedPrompts prompts = prepare_chat(served, body);
  if (prompts) {
    body.echoed = prompts->front().size();
  }
  return prompts;
}

std::unique_ptr<AnswerWriter> make_messages_writer(
    const Served& served,
    GenerationBody& body,
    AnswerInfo info,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): as GeneratingEndpoint::make_writer
    AnswerShape /*shape*/) {
  const MakeChatParser parser = chat_parser(served, body, ChatEndpoint::kOther, info.id);
  return make_messages_writer(std::move(info), body.echoed.get<int64_t>(), parser);
}

}  // namespace

ApiAnswer answer_messages(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr GeneratingEndpoint kMessages{
      "messages", "msg", &parse_messages, &prepare, &chat_echo, &make_messages_writer};
  ApiAnswer answer = generate(served, request, wake, kMessages);
  if (auto* reply = std::get_if<HttpReply>(&answer)) {
    *reply = as_messages_reply(std::move(*reply));
  }
  return answer;
}

ApiAnswer answer_count_tokens(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const auto refuse = [](const ApiError& error) { return as_messages_reply(error_reply(error)); };
  Result<GenerationBody> body =
      parse_messages_body(request.body, true).and_then([](const OrderedJson& chat) {
        return read_chat_body(chat, "");
      });
  if (!body) {
    return refuse(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return refuse(headers.error());
  }
  const EncodedPrompts prompts = prepare_chat(served, *body);
  if (!prompts) {
    return refuse(prompts.error());
  }
  const OrderedJson out = {{"input_tokens", prompts->front().size()}};
  return HttpReply{.body = out.dump(), .headers = *std::move(headers)};
}

}  // namespace warprow
