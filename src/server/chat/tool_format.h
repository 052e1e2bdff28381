// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/chat_template.h"
#include "text/text_model.h"
#include "text/thinking.h"

#include <optional>
#include <string_view>

namespace warprow {

// How a model writes its calls of tools.
enum class ToolFormat {
  kNone,
  kHermes,   // <tool_call>{"name", "arguments"}</tool_call>; Qwen, Hermes
  kLlama3,   // {"name", "parameters"} as the whole text, several joined by ';'
  kMistral,  // [TOOL_CALLS][{"name", "arguments"}, ...] or [TOOL_CALLS]name[CALL_ID]id[ARGS]{...}
  kList,     // a JSON list of {"name", "parameters"}: what a grammar for a required call gives
  kNamed,    // the arguments alone: what a grammar for a named function gives
};

// How the template writes a call that an assistant has made; hermes if it writes none of these.
ToolFormat tool_format_of(const ChatTemplate& chat_template);
ToolFormat tool_format_of(const TextModel& text);
// vLLM's name of a parser: hermes, llama3_json, mistral or none; nullopt for "auto".
Result<std::optional<ToolFormat>> parse_tool_format(std::string_view name);

// Whether the vocabulary has <think> and </think>, which are told apart then.
bool has_reasoning(const TextModel& text);
// vLLM's name of a parser: qwen3 and deepseek_r1 do, none does not; nullopt for "auto".
Result<std::optional<bool>> parse_reasoning(std::string_view name);

// What begins and ends a section of a model's text.
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
