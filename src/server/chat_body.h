// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/json_value.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// A chat's tools and tool choice.
struct ToolOptions {
  enum class Choice { kNone, kAuto, kRequired, kNamed };

  nlohmann::ordered_json tools = nullptr;  // a list of functions, or null
  Choice choice = Choice::kAuto;
  std::string name;  // with kNamed
  bool parallel = true;
};

// Reads the messages for a chat template: roles are texts; contents are texts or lists of text parts; a null content
// becomes ""; tool calls have names and arguments. Unknown members are dropped and named in `ignored`.
Result<nlohmann::ordered_json> read_messages(const std::string& field,
                                             const nlohmann::ordered_json& value,
                                             std::vector<std::string>& ignored);

// Checks the arguments of a tool call: text, an object or null. The template gets an object parsed from the text, so
// the text is checked like a body. `shape` accumulates over all such texts of a request.
Result<void> check_arguments(const std::string& field,
                             const nlohmann::ordered_json& value,
                             JsonShape& shape);

// Reads a list of {"type": "function", "function": {"name", "description", "parameters"}}; null for an empty list.
Result<nlohmann::ordered_json> read_tools(const char* field, const nlohmann::ordered_json& value);

// Reads "none", "auto", "required" or {"type": "function", "function": {"name"}}.
Result<void> read_tool_choice(const char* field,
                              const nlohmann::ordered_json& value,
                              ToolOptions& options);

// Checks that the choice fits the tools. Without tools the choice becomes kNone.
Result<void> check_tool_options(ToolOptions& options);

}  // namespace warprow
