// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// A call as Python writes it, with named arguments that are literals: f(a=1, b=['x', {'k': None}]).
struct PythonCall {
  enum class Status { kMore, kDone, kBroken };
  Status status = Status::kBroken;
  size_t len = 0;           // kDone: bytes up to the closing bracket, with it
  std::string name{};       // letters, digits, '_' and '.'
  std::string arguments{};  // a JSON object
};

// Reads a call at the beginning of the text. kMore: the text is a beginning of a call. Literals nest up to 64 levels.
PythonCall read_python_call(std::string_view text);

// JSON of a text that is one literal of Python; nullopt if it is none.
std::optional<std::string> python_literal(std::string_view text);

}  // namespace warprow
