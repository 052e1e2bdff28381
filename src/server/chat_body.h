// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/json_value.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// What a chat says about tools.
struct ToolOptions {
  enum class Choice { kNone, kAuto, kRequired, kNamed };

  nlohmann::ordered_json tools = nullptr;  // a list of functions, or null
  Choice choice = Choice::kAuto;
  std::string name;  // with kNamed
  bool parallel = true;
};

// The messages as a chat template takes them: roles are texts; contents are texts or lists of text
// parts; null contents become ""; tool calls have names and arguments. Members that mean nothing here
// are left out and named in `ignored`.
Result<nlohmann::ordered_json> read_messages(const std::string& field,
                                             const nlohmann::ordered_json& value,
                                             std::vector<std::string>& ignored);

// Of a call: text, an object or null. The template's objects are parsed from such texts, which so have
// a shape of their own, and `shape` sees all those of a request.
Result<void> check_arguments(const std::string& field,
                             const nlohmann::ordered_json& value,
                             JsonShape& shape);

// A list of {"type": "function", "function": {"name", "description", "parameters"}}; null for an empty
// one.
Result<nlohmann::ordered_json> read_tools(const char* field, const nlohmann::ordered_json& value);

// "none", "auto", "required" or {"type": "function", "function": {"name"}}.
Result<void> read_tool_choice(const char* field,
                              const nlohmann::ordered_json& value,
                              ToolOptions& options);

// Whether choice and tools fit together; without tools the choice becomes kNone.
Result<void> check_tool_options(ToolOptions& options);

}  // namespace warprow
