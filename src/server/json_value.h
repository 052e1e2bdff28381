// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {

// Checks a client's JSON before it is parsed. No text may nest deeper than 64 levels, because each level takes stack.
// The texts given to one JsonShape may together not have objects with so many members that parsing takes long. The
// parser checks the syntax.
class JsonShape {
 public:
  // Checks one more text. Returns "" or the fault, worded to follow the field's name.
  std::string error(std::string_view text);

 private:
  int64_t squares_ = 0;  // sum of the squares of all objects' member counts
};

// Parses a body. kInvalidArgument if it is not a JSON object or fails JsonShape. Members keep their order, which
// schemas and templates need.
Result<nlohmann::ordered_json> parse_json_object(std::string_view text);

// Each reads a field's value into target. The error names the field, the value and what the value must be.
Result<void> read_value(const char* field, const nlohmann::ordered_json& value, bool& target);
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::string& target);
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::optional<double>& target);
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::optional<int64_t>& target);
// One text or a list of them.
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::vector<std::string>& target);
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::vector<int64_t>& target);
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::optional<std::vector<int64_t>>& target);
// An object that maps token ids, which are texts in JSON, to numbers.
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::map<int64_t, double>& target);

// A list of token ids, each within 32 bits and not below `least`.
Result<std::vector<TokenId>> read_token_ids(const char* field,
                                            const nlohmann::ordered_json& value,
                                            TokenId least = 0);

std::optional<int64_t> whole_number(const nlohmann::ordered_json& value);

// "top_k: must be a whole number, not "seven"".
tl::unexpected<Error> wrong_value(std::string_view field,
                                  std::string_view wanted,
                                  const nlohmann::ordered_json& value);

// The member of that name; null if it is missing or if `object` is no object.
nlohmann::ordered_json member_of(const nlohmann::ordered_json& object, const char* name);

}  // namespace warprow
