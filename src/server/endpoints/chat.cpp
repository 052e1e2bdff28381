// SPDX-License-Identifier: Apache-2.0
#include "server/chat/counted_parser.h"
#include "server/chat/harmony_grammar.h"
#include "server/chat/tool_grammar.h"
#include "server/chat/tool_parser.h"
#include "server/endpoints/chat_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/endpoints/writers.h"
#include "text/chat_prompt.h"
#include "text/text_model.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

namespace warprow {
namespace {

// Whether special tokens mark a call in this format, so that the text must keep them.
bool has_special_markers(ToolFormat format) {
  switch (format) {
    case ToolFormat::kMistral:
    case ToolFormat::kLlama3:
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kGlm:
    case ToolFormat::kPythonic:
    case ToolFormat::kKimi:
      return true;
    default:
      return false;
  }
}

bool is_harmony(const Served& served) {
  return served.options.reasoning == ReasoningFormat::kHarmony;
}

// Sets the sampling options that tools need: a grammar for forced calls, special tokens in the text.
Result<void> apply_tools(const Served& served, GenerationBody& body) {
  using Choice = ToolOptions::Choice;
  const ToolOptions& tools = body.chat.tools;
  if (tools.choice == Choice::kRequired || tools.choice == Choice::kNamed) {
    if (body.sampling.structured_output) {
      return fail(ErrorCode::kInvalidArgument,
                  "tool_choice: response_format and structured_outputs leave no room for a call");
    }
    Result<StructuredOutput> grammar =
        is_harmony(served) ? harmony_tool_grammar(tools) : tool_grammar(tools);
    if (!grammar) {
      return tl::unexpected(grammar.error());
    }
    body.sampling.structured_output = *std::move(grammar);
  }
  if (is_harmony(served) ||
      (tools.choice == Choice::kAuto && has_special_markers(served.options.tool_format))) {
    body.sampling.skip_special_tokens = false;
  }
  return {};
}

// Harmony's templates name earlier reasoning `thinking`. In a message with calls they show it or the content.
void name_thinking(OrderedJson& messages) {
  for (OrderedJson& message : messages) {
    const bool shows_content = message.contains("tool_calls") && message["content"] != "";
    if (message.contains("reasoning_content") && !shows_content) {
      message["thinking"] = message["reasoning_content"];
    }
  }
}

// A structured answer begins behind the section or the header that the model writes first.
void place_structure(const Served& served, const std::string& prompt, GenerationBody& body) {
  if (!body.sampling.structured_output) {
    return;
  }
  StructuredOutput& structure = *body.sampling.structured_output;
  if (served.options.reasoning == ReasoningFormat::kThink) {
    structure.thinking = body.chat.thinking;
  } else if (is_harmony(served) && body.chat.tools.choice != ToolOptions::Choice::kRequired &&
             body.chat.tools.choice != ToolOptions::Choice::kNamed &&
             prompt.ends_with(kHarmonyTurn)) {
    structure.preamble = harmony_answer_preamble();
  }
}

// A thinking section ends when its budget is spent, whether a structure follows or not.
Result<void> limit_thinking(const Served& served, GenerationBody& body) {
  const int64_t budget = body.chat.thinking_token_budget.value_or(-1);
  if (budget == -1) {
    return {};
  }
  if (budget < 0) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("thinking_token_budget: {} must be 0 or more, or -1 for none", budget));
  }
  if (served.options.reasoning != ReasoningFormat::kThink) {
    return fail(ErrorCode::kUnsupported,
                "thinking_token_budget: this server separates no <think> sections (see "
                "--reasoning-parser)");
  }
  if (body.chat.thinking != Thinking::kNone) {
    std::optional<StructuredOutput>& structure = body.sampling.structured_output;
    if (!structure) {
      structure = StructuredOutput{GrammarKind::kAny, "", "thinking_token_budget"};
    }
    structure->thinking = body.chat.thinking;
    structure->thinking_budget = budget;
  }
  return {};
}

std::unique_ptr<AnswerWriter> make_writer(const Served& served,
                                          GenerationBody& body,
                                          AnswerInfo info,
                                          AnswerShape shape) {
  const MakeChatParser parser = chat_parser(served, body, ChatEndpoint::kChatCompletions, info.id);
  return make_chat_writer(std::move(info), token_bytes(served, body), std::move(shape), parser);
}

}  // namespace

ApiAnswer answer_chat_completions(Served& served, const HttpRequest& request, const Wake& wake) {
  static constexpr GeneratingEndpoint kChat{
      "chat", "chatcmpl", &parse_chat_body, &prepare_chat, &chat_echo, &make_writer};
  return generate(served, request, wake, kChat);
}

Result<std::string> render_chat_of(const Served& served, const ChatRequest& chat) {
  if (chat.chat_template && !served.options.trust_request_chat_template) {
    return fail(ErrorCode::kUnsupported,
                "chat_template: this server was started without --trust-request-chat-template");
  }
  return render_chat(chat, served.engine.text());
}

EncodedPrompts prepare_chat(const Served& served, GenerationBody& body) {
  ChatOptions& chat = body.chat;
  if (is_harmony(served)) {
    name_thinking(chat.request.messages);
  }
  const Result<std::string> rendered = render_chat_of(served, chat.request);
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
  place_structure(served, *rendered, body);
  if (Result<void> limited = limit_thinking(served, body); !limited) {
    return tl::unexpected(api_error(limited.error()));
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
                           const GenerationBody& body,
                           ChatEndpoint endpoint,
                           const std::string& answer_id) {
  const ChatOptions& chat = body.chat;
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
      options.parameters = ParameterKinds(chat.tools.tools);
      break;
    case ToolOptions::Choice::kRequired:
      options.format = is_harmony(served) ? ToolFormat::kHarmony : ToolFormat::kList;
      break;
    case ToolOptions::Choice::kNamed:
      options.format = is_harmony(served) ? ToolFormat::kHarmony : ToolFormat::kNamed;
      break;
  }
  if (options.format == ToolFormat::kNone && options.reasoning == ReasoningFormat::kNone) {
    return {};
  }
  return [options,
          id = answer_id.substr(answer_id.find('-') + 1),
          streams = body.stream,
          endpoint,
          &metrics = served.watch.metrics](size_t choice) {
    ChatParserOptions of_choice = options;
    of_choice.id_prefix = fmt::format("call_{}_{}_", id, choice);
    std::unique_ptr<ChatParser> parser = make_chat_parser(std::move(of_choice));
    if (options.format == ToolFormat::kNone) {
      return parser;
    }
    return count_tool_calls(std::move(parser), streams, [&metrics, endpoint, streams](bool found) {
      metrics.count_tool_parse(endpoint, streams, found);
    });
  };
}

}  // namespace warprow
