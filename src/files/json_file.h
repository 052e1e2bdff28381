// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// No model file nests nearly this deep; deeper nesting is an attack or an error.
inline constexpr int kMaxJsonDepth = 64;

// Parses UTF-8 JSON. `where` is the file's name in messages. kCorrupt with line and column if the text is not JSON
// or nests deeper than kMaxJsonDepth. Throws nothing. `repeated_key`, if given, receives the first key that occurs
// twice in the outermost object (JSON does not define what that means), or stays empty.
Result<nlohmann::json> parse_json(std::string_view text,
                                  const std::string& where,
                                  std::string* repeated_key = nullptr);

// The same for a file: kNotFound or kInvalidArgument if it cannot be read.
Result<nlohmann::json> read_json_file(const std::string& path);

}  // namespace warprow
