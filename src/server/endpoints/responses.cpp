// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/chat_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/responses_body.h"
#include "server/endpoints/writers.h"

#include <memory>
#include <string_view>
#include <utility>

namespace warprow {
namespace {

Result<GenerationBody> parse(std::string_view text) {
  Result<ResponsesBody> read = parse_responses_body(text);
  if (!read) {
    return tl::unexpected(read.error());
  }
  Result<GenerationBody> body = read_chat_body(read->chat, "");
  if (body) {
    body->echoed = std::move(read->echoed);
  }
  return body;
}

std::unique_ptr<AnswerWriter> make_writer(
    const Served& served,
    GenerationBody& body,
    AnswerInfo info,
    // NOLINTNEXTLINE(performance-unnecessary-value-param): as GeneratingEndpoint::make_writer
    AnswerShape /*shape*/) {
  const MakeChatParser parser = chat_parser(served, body, ChatEndpoint::kResponses, info.id);
  return make_responses_writer(std::move(info), std::move(body.echoed), parser);
}

}  // namespace

ApiAnswer answer_responses(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr GeneratingEndpoint kResponses{
      "responses", "resp", &parse, &prepare_chat, &chat_echo, &make_writer};
  return generate(served, request, wake, kResponses);
}

}  // namespace warprow
