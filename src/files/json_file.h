// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

namespace warprow {

// No model file comes near; deeper nesting is an attack or an accident.
inline constexpr int kMaxJsonDepth = 64;

// Parses UTF-8 JSON. `where` stands for the file in messages. kCorrupt with line and column if the
// text is no JSON or nests deeper than kMaxJsonDepth. Throws nothing. With `repeated_key` given, it
// receives the first key that occurs twice in the outermost object (JSON leaves the meaning of that
// open), or stays empty.
Result<nlohmann::json> parse_json(std::string_view text,
                                  const std::string& where,
                                  std::string* repeated_key = nullptr);

// The same for a file: kNotFound or kInvalidArgument if it cannot be read.
Result<nlohmann::json> read_json_file(const std::string& path);

}  // namespace warprow
