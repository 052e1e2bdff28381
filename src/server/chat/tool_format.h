// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/chat_template.h"
#include "text/text_model.h"
#include "text/thinking.h"

#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// How a model writes its tool calls.
enum class ToolFormat {
  kNone,
  kHermes,   // <tool_call>{"name", "arguments"}</tool_call>; Qwen, Hermes
  kLlama3,   // {"name", "parameters"} as the whole text, several joined by ';'
  kMistral,  // [TOOL_CALLS][{"name", "arguments"}, ...] or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}
  kList,   // a JSON list of {"name", "parameters"}; a grammar forces it for tool_choice "required"
  kNamed,  // the arguments alone; a grammar forces it for a named function
  // <tool_call><function=NAME><parameter=KEY>value</parameter></function></tool_call>; Qwen3-Coder, Qwen3.5
  kQwen3Coder,
  // <｜tool▁calls▁begin｜> and calls: name and JSON arguments between markers; DeepSeek V3, R1, V3.1
  kDeepSeekV3,
  kGlm,  // <tool_call>NAME<arg_key>KEY</arg_key><arg_value>value</arg_value></tool_call>; GLM-4.5
  kPythonic,  // [f(a=1), g(b='x')] as the whole text; Llama 3.2 and 4
  kKimi,  // <|tool_calls_section_begin|> and calls: id and JSON arguments between markers; Kimi K2
  kHarmony,  // messages to functions.NAME in the channel `commentary`; gpt-oss
};

// How a model writes its reasoning.
enum class ReasoningFormat {
  kNone,
  kThink,  // <think> ... </think> before the answer
  kGranite,  // the same with <response> ... </response> behind, or Granite 3.2's sentences before both parts
  kHarmony,  // messages in the channel `analysis`; gpt-oss
};

// The format in which the template renders an assistant's tool call; hermes if it is none of these.
ToolFormat tool_format_of(const ChatTemplate& chat_template);
ToolFormat tool_format_of(const TextModel& text);
// Takes vLLM's parser names, in the table of docs/server.md. nullopt for "auto".
Result<std::optional<ToolFormat>> parse_tool_format(std::string_view name);
// The names, separated by '|'.
std::string tool_format_names();

// harmony if the vocabulary has its markers, think if it has <think> and </think>, granite if the template asks for its
// sections, else none.
ReasoningFormat reasoning_format_of(const TextModel& text);
// Takes vLLM's parser names. nullopt for "auto".
Result<std::optional<ReasoningFormat>> parse_reasoning(std::string_view name);
std::string reasoning_names();

// The markers at which a section of a model's text begins and ends.
namespace marker {
inline constexpr std::string_view kThink = kThinkTag;
inline constexpr std::string_view kEndThink = kEndThinkTag;
inline constexpr std::string_view kHermesCall = "<tool_call>";
inline constexpr std::string_view kEndHermesCall = "</tool_call>";
// harmony
inline constexpr std::string_view kStart = "<|start|>";
inline constexpr std::string_view kChannel = "<|channel|>";
inline constexpr std::string_view kConstrain = "<|constrain|>";
inline constexpr std::string_view kMessage = "<|message|>";
inline constexpr std::string_view kEndMessage = "<|end|>";
inline constexpr std::string_view kEndCall = "<|call|>";
inline constexpr std::string_view kReturn = "<|return|>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
inline constexpr std::string_view kMistralCalls = "[TOOL_CALLS]";
inline constexpr std::string_view kMistralId = "[CALL_ID]";
inline constexpr std::string_view kMistralArgs = "[ARGS]";
}  // namespace marker

}  // namespace warprow
