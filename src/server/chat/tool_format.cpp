// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_format.h"

#include <span>
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
  // Each mark occurs in calls of one format only. A later one may contain an earlier one's.
  constexpr std::pair<std::string_view, ToolFormat> kMarks[] = {
      {marker::kMistralCalls, ToolFormat::kMistral},
      {"to=functions.probe", ToolFormat::kHarmony},
      {"<｜tool▁calls▁begin｜>", ToolFormat::kDeepSeekV3},
      {"<|tool_calls_section_begin|>", ToolFormat::kKimi},
      {"<function=probe>", ToolFormat::kQwen3Coder},
      {"<arg_key>", ToolFormat::kGlm},
      {"[probe(", ToolFormat::kPythonic},
      {marker::kHermesCall, ToolFormat::kHermes},
      {R"({"name": "probe", "parameters": )", ToolFormat::kLlama3}};
  const std::string call = rendered_call(chat_template);
  for (const auto& [mark, format] : kMarks) {
    if (call.find(mark) != std::string::npos) {
      return format;
    }
  }
  return ToolFormat::kHermes;
}

ToolFormat tool_format_of(const TextModel& text) {
  return text.chat_template ? tool_format_of(*text.chat_template) : ToolFormat::kHermes;
}

namespace {

// Granite's templates describe both sections in the system's turn when thinking is enabled.
bool asks_for_granite(const TextModel& text) {
  if (!text.chat_template) {
    return false;
  }
  ChatRequest request;
  request.messages.push_back({{"role", "user"}, {"content", "x"}});
  request.variables["thinking"] = true;
  const std::string prompt = text.chat_template->render(request).value_or("");
  return prompt.find("<response>") != std::string::npos ||
         prompt.find("my thought process:") != std::string::npos;
}

template <typename Format>
using Names = std::span<const std::pair<std::string_view, std::optional<Format>>>;

constexpr std::pair<std::string_view, std::optional<ToolFormat>> kToolNames[] = {
    {"auto", std::nullopt},
    {"hermes", ToolFormat::kHermes},
    {"llama3_json", ToolFormat::kLlama3},
    {"mistral", ToolFormat::kMistral},
    {"qwen3_coder", ToolFormat::kQwen3Coder},
    {"qwen3_xml", ToolFormat::kQwen3Coder},
    {"deepseek_v3", ToolFormat::kDeepSeekV3},
    {"deepseek_v31", ToolFormat::kDeepSeekV3},
    {"glm", ToolFormat::kGlm},
    {"glm45", ToolFormat::kGlm},
    {"pythonic", ToolFormat::kPythonic},
    {"llama4_pythonic", ToolFormat::kPythonic},
    {"kimi", ToolFormat::kKimi},
    {"kimi_k2", ToolFormat::kKimi},
    {"openai", ToolFormat::kHarmony},
    {"none", ToolFormat::kNone}};

constexpr std::pair<std::string_view, std::optional<ReasoningFormat>> kReasoningNames[] = {
    {"auto", std::nullopt},
    {"qwen3", ReasoningFormat::kThink},
    {"deepseek_r1", ReasoningFormat::kThink},
    {"deepseek_v3", ReasoningFormat::kThink},
    {"glm", ReasoningFormat::kThink},
    {"glm45", ReasoningFormat::kThink},
    {"granite", ReasoningFormat::kGranite},
    {"openai_gptoss", ReasoningFormat::kHarmony},
    {"none", ReasoningFormat::kNone}};

template <typename Format>
std::string joined(Names<Format> names) {
  std::string out;
  for (const auto& [name, format] : names) {
    out += (out.empty() ? "" : "|") + std::string(name);
  }
  return out;
}

template <typename Format>
Result<std::optional<Format>> format_of(Names<Format> names,
                                        std::string_view name,
                                        const char* flag) {
  for (const auto& [known, format] : names) {
    if (name == known) {
      return format;
    }
  }
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: '{}' is none of {}", flag, name, joined(names)));
}

}  // namespace

Result<std::optional<ToolFormat>> parse_tool_format(std::string_view name) {
  return format_of(Names<ToolFormat>(kToolNames), name, "--tool-call-parser");
}

std::string tool_format_names() { return joined(Names<ToolFormat>(kToolNames)); }

ReasoningFormat reasoning_format_of(const TextModel& text) {
  const auto has = [&text](std::string_view token) {
    return text.tokenizer.find(token).has_value();
  };
  if (has(marker::kChannel) && has(marker::kMessage) && has(marker::kReturn)) {
    return ReasoningFormat::kHarmony;
  }
  if (has(marker::kThink) && has(marker::kEndThink)) {
    return ReasoningFormat::kThink;
  }
  return asks_for_granite(text) ? ReasoningFormat::kGranite : ReasoningFormat::kNone;
}

Result<std::optional<ReasoningFormat>> parse_reasoning(std::string_view name) {
  return format_of(Names<ReasoningFormat>(kReasoningNames), name, "--reasoning-parser");
}

std::string reasoning_names() { return joined(Names<ReasoningFormat>(kReasoningNames)); }

}  // namespace warprow
