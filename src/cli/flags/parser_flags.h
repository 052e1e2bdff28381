// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "cli/flags/flag_set.h"
#include "server/api.h"
#include "text/text_model.h"

#include <optional>

namespace warprow {

// --tool-call-parser and --reasoning-parser: how chat answers are divided into content, tool calls and reasoning.
struct ParserFlags {
  std::optional<ToolFormat> tool_format;     // none: auto
  std::optional<ReasoningFormat> reasoning;  // none: auto
  bool auto_tool_choice = true;              // false: only calls that a request forces are parsed
};

void add_parser_flags(FlagSet& flags, const char* group, ParserFlags& parsers);

// Sets the API's options. Needs the loaded model.
void set_parsers(const ParserFlags& parsers, const TextModel& text, ApiOptions& api);

}  // namespace warprow
