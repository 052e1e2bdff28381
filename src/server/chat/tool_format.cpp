// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_format.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

// A chat with one tool call of the assistant, rendered by the template.
std::string rendered_call(const ChatTemplate& chat_template) {
  ChatRequest request;
  const OrderedJson function = {{"name", "probe"}, {"arguments", R"({"a": 1})"}};
  const OrderedJson call = {{"id", "abcdefghi"}, {"type", "function"}, {"function", function}};
  request.messages.push_back({{"role", "user"}, {"content", "x"}});
  request.messages.push_back(
      {{"role", "assistant"}, {"content", ""}, {"tool_calls", OrderedJson::array({call})}});
  request.tools = OrderedJson::array(
      {{{"type", "function"},
        {"function",
         {{"name", "probe"},
          {"description", "d"},
          {"parameters", {{"type", "object"}, {"properties", OrderedJson::object()}}}}}}});
  request.add_generation_prompt = false;
  return chat_template.render(request).value_or("");
}

}  // namespace

ToolFormat tool_format_of(const ChatTemplate& chat_template) {
  const std::string call = rendered_call(chat_template);
  const auto shows = [&call](std::string_view part) {
    return call.find(part) != std::string::npos;
  };
  if (shows(marker::kMistralCalls)) {
    return ToolFormat::kMistral;
  }
  const bool is_llama = !shows(marker::kHermesCall) && shows(R"({"name": "probe", "parameters": )");
  return is_llama ? ToolFormat::kLlama3 : ToolFormat::kHermes;
}

ToolFormat tool_format_of(const TextModel& text) {
  return text.chat_template ? tool_format_of(*text.chat_template) : ToolFormat::kHermes;
}

Result<std::optional<ToolFormat>> parse_tool_format(std::string_view name) {
  constexpr std::pair<std::string_view, std::optional<ToolFormat>> kNames[] = {
      {"auto", std::nullopt},
      {"none", ToolFormat::kNone},
      {"hermes", ToolFormat::kHermes},
      {"llama3_json", ToolFormat::kLlama3},
      {"mistral", ToolFormat::kMistral}};
  for (const auto& [known, format] : kNames) {
    if (name == known) {
      return format;
    }
  }
  return fail(
      ErrorCode::kInvalidArgument,
      fmt::format("--tool-call-parser: '{}' is none of auto|hermes|llama3_json|mistral|none",
                  name));
}

bool has_reasoning(const TextModel& text) {
  return text.tokenizer.find(marker::kThink).has_value() &&
         text.tokenizer.find(marker::kEndThink).has_value();
}

Result<std::optional<bool>> parse_reasoning(std::string_view name) {
  if (name == "auto") {
    return std::nullopt;
  }
  if (name != "none" && name != "qwen3" && name != "deepseek_r1") {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("--reasoning-parser: '{}' is none of auto|qwen3|deepseek_r1|none", name));
  }
  return name != "none";
}

}  // namespace warprow
