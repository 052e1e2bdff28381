// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_grammar.h"
#include "server/chat/tool_parser.h"
#include "server/endpoints/chat_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/writers.h"
#include "text/chat_prompt.h"
#include "text/text_model.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Sets the sampling options that tools need: a grammar for forced calls, special tokens in the text.
Result<void> apply_tools(const Served& served, GenerationBody& body) {
  using Choice = ToolOptions::Choice;
  const ToolOptions& tools = body.chat.tools;
  if (tools.choice == Choice::kRequired || tools.choice == Choice::kNamed) {
    if (body.sampling.structured_output) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool_choice: response_format and structured_outputs leave no room for a call");
    }
    body.sampling.structured_output = tool_grammar(tools);
  }
  // In these formats special tokens mark a call, so the text must keep them.
  const bool needs_special = served.options.tool_format == ToolFormat::kMistral ||
                             served.options.tool_format == ToolFormat::kLlama3;
  if (tools.choice == Choice::kAuto && needs_special) {
    body.sampling.skip_special_tokens = false;
  }
  return {};
}

std::unique_ptr<AnswerWriter> make_writer(const Served& served,
                                          GenerationBody& body,
                                          AnswerInfo info,
                                          AnswerShape shape) {
  const MakeChatParser parser = chat_parser(served, body.chat, info.id);
  return make_chat_writer(std::move(info), token_bytes(served, body), std::move(shape), parser);
}

}  // namespace

ApiAnswer answer_chat_completions(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr GeneratingEndpoint kChat{
      "chat", "chatcmpl", &parse_chat_body, &prepare_chat, &chat_echo, &make_writer};
  return generate(served, request, wake, kChat);
}

EncodedPrompts prepare_chat(const Served& served, GenerationBody& body) {
  ChatOptions& chat = body.chat;
  const Result<std::string> rendered = render_chat(chat.request, served.engine.text());
  if (!rendered) {
    return tl::unexpected(api_error(rendered.error()));
  }
  chat.thinking = thinking_behind(chat.request, *rendered);
  tl::expected<std::vector<TokenId>, ApiError> ids =
      encode_text(served, body, *rendered, body.add_special_tokens.value_or(false));
  if (!ids) {
    return tl::unexpected(std::move(ids.error()));
  }
  if (Result<void> applied = apply_tools(served, body); !applied) {
    return tl::unexpected(api_error(applied.error()));
  }
  if (served.options.reasoning && body.sampling.structured_output) {
    body.sampling.structured_output->thinking = chat.thinking;
  }
  Prompts prompts;
  prompts.push_back(*std::move(ids));
  return prompts;
}

// As vLLM: the last message's text, if the assistant wrote it or if the prompt has no generation prompt.
std::string chat_echo(const Served& /*served*/,
                      const GenerationBody& body,
                      size_t /*index*/,
                      const std::vector<TokenId>& /*prompt*/) {
  const ChatRequest& request = body.chat.request;
  const auto& last = request.messages.back();
  const auto content = last.find("content");
  const bool is_authors = !request.add_generation_prompt || last.value("role", "") == "assistant";
  return is_authors && content != last.end() && content->is_string() ? content->get<std::string>()
                                                                     : "";
}

MakeChatParser chat_parser(const Served& served,
                           const ChatOptions& chat,
                           const std::string& answer_id) {
  ChatParserOptions options{.function = chat.tools.name,
                            .parallel = chat.tools.parallel,
                            .reasoning = served.options.reasoning,
                            .begins_reasoning = chat.thinking == Thinking::kOpen,
                            .include_reasoning = chat.include_reasoning,
                            .short_ids = served.options.tool_format == ToolFormat::kMistral};
  switch (chat.tools.choice) {
    case ToolOptions::Choice::kNone:
      break;
    case ToolOptions::Choice::kAuto:
      options.format = served.options.tool_format;
      break;
    case ToolOptions::Choice::kRequired:
      options.format = ToolFormat::kList;
      break;
    case ToolOptions::Choice::kNamed:
      options.format = ToolFormat::kNamed;
      break;
  }
  if (options.format == ToolFormat::kNone && !options.reasoning) {
    return {};
  }
  return [options, id = answer_id.substr(answer_id.find('-') + 1)](size_t choice) {
    ChatParserOptions of_choice = options;
    of_choice.id_prefix = fmt::format("call_{}_{}_", id, choice);
    return make_chat_parser(std::move(of_choice));
  };
}

}  // namespace warprow
