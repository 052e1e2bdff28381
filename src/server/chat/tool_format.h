// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/chat_template.h"
#include "text/text_model.h"
#include "text/thinking.h"

#include <optional>
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
};

// The format in which the template renders an assistant's tool call; hermes if it is none of these.
ToolFormat tool_format_of(const ChatTemplate& chat_template);
ToolFormat tool_format_of(const TextModel& text);
// Takes vLLM's parser names: hermes, llama3_json, mistral or none. nullopt for "auto".
Result<std::optional<ToolFormat>> parse_tool_format(std::string_view name);

// Whether the vocabulary has <think> and </think>. If so, reasoning is separated from content.
bool has_reasoning(const TextModel& text);
// Takes vLLM's parser names: true for qwen3 and deepseek_r1, false for none, nullopt for "auto".
Result<std::optional<bool>> parse_reasoning(std::string_view name);

// The markers at which a section of a model's text begins and ends.
namespace marker {
inline constexpr std::string_view kThink = kThinkTag;
inline constexpr std::string_view kEndThink = kEndThinkTag;
inline constexpr std::string_view kHermesCall = "<tool_call>";
inline constexpr std::string_view kEndHermesCall = "</tool_call>";
inline constexpr std::string_view kPythonTag = "<|python_tag|>";
inline constexpr std::string_view kMistralCalls = "[TOOL_CALLS]";
inline constexpr std::string_view kMistralId = "[CALL_ID]";
inline constexpr std::string_view kMistralArgs = "[ARGS]";
}  // namespace marker

}  // namespace warprow
