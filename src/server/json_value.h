// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// A client's JSON, which may be anything: kInvalidArgument if it is no JSON object or nests deeper
// than 64 levels (walking through a value takes stack for each).
Result<nlohmann::json> parse_json_object(std::string_view text);

// Each reads a field's value into target; the error names the field, the value and what it must be.
Result<void> read_value(const char* field, const nlohmann::json& value, bool& target);
Result<void> read_value(const char* field, const nlohmann::json& value, std::string& target);
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::optional<double>& target);
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::optional<int64_t>& target);
// One text or a list of them.
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::vector<std::string>& target);
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::vector<int64_t>& target);
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::optional<std::vector<int64_t>>& target);
// An object from token ids, which JSON writes as texts, to numbers.
Result<void> read_value(const char* field,
                        const nlohmann::json& value,
                        std::map<int64_t, double>& target);

std::optional<int64_t> whole_number(const nlohmann::json& value);

// "top_k: must be a whole number, not "seven"".
tl::unexpected<Error> wrong_value(std::string_view field,
                                  std::string_view wanted,
                                  const nlohmann::json& value);

}  // namespace warprow
