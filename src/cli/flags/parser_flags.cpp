// SPDX-License-Identifier: Apache-2.0
#include "cli/flags/parser_flags.h"

#include <functional>
#include <string>
#include <string_view>

namespace warprow {
namespace {

// A ReadValue that sets `target` to the result of `parse`.
template <typename T>
std::function<Result<void>(const std::string&)> into(T& target,
                                                     Result<T> (*parse)(std::string_view)) {
  return [&target, parse](const std::string& text) {
    return parse(text).map([&target](const T& parsed) { target = parsed; });
  };
}

}  // namespace

void add_parser_flags(FlagSet& flags, const char* group, ParserFlags& parsers) {
  flags.add_value(
      {.name = "tool-call-parser",
       .value = tool_format_names(),
       .group = group,
       .help = "how the model writes its tool calls; auto: as its chat template does [auto]",
       .common = false},
      into(parsers.tool_format, parse_tool_format));
  flags.add_switch({.name = "enable-auto-tool-choice",
                    .value = "",
                    .group = group,
                    .help = "let the model decide whether it calls tools; off: only calls that "
                            "tool_choice forces are parsed [true]",
                    .common = false},
                   [&parsers](bool on) { parsers.auto_tool_choice = on; });
  flags.add_value({.name = "reasoning-parser",
                   .value = reasoning_names(),
                   .group = group,
                   .help = "how the model writes what becomes reasoning_content; auto: as its "
                           "vocabulary and chat template show [auto]",
                   .common = false},
                  into(parsers.reasoning, parse_reasoning));
}

void set_parsers(const ParserFlags& parsers, const TextModel& text, ApiOptions& api) {
  api.tool_format = parsers.tool_format ? *parsers.tool_format : tool_format_of(text);
  api.reasoning = parsers.reasoning ? *parsers.reasoning : reasoning_format_of(text);
  // Harmony's messages hold reasoning, content and calls alike.
  if (parsers.tool_format == ToolFormat::kHarmony) {
    api.reasoning = ReasoningFormat::kHarmony;
  } else if (api.reasoning == ReasoningFormat::kHarmony && !parsers.tool_format) {
    api.tool_format = ToolFormat::kHarmony;
  }
  if (!parsers.auto_tool_choice && api.tool_format != ToolFormat::kHarmony) {
    api.tool_format = ToolFormat::kNone;
  }
}

}  // namespace warprow
