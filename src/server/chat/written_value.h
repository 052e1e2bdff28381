// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "text/chat_template.h"

#include <map>
#include <string>
#include <string_view>

namespace warprow {

// What a tool's schema says of a parameter that a model writes without quotes.
enum class ParameterKind {
  kUnknown,  // the schema does not say
  kText,     // text
  kOther,    // numbers, booleans, objects, arrays, null
  kTextOrNull,
};

// The kinds of the parameters of all tools.
class ParameterKinds {
 public:
  ParameterKinds() = default;
  // tools: as in ToolOptions; null if there are none.
  explicit ParameterKinds(const OrderedJson& tools);

  [[nodiscard]] ParameterKind find(const std::string& function, const std::string& parameter) const;

 private:
  std::map<std::string, std::map<std::string, ParameterKind>> kinds_;
};

// The text as a JSON string.
std::string json_text_of(std::string_view text);

// JSON of a value that was written as text: a string, or the JSON or Python literal that it spells. may_be_literal:
// whether a value of unknown kind is read as a literal where it spells one.
std::string written_value(std::string_view text, ParameterKind kind, bool may_be_literal);

}  // namespace warprow
