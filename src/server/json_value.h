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

// Looks at a client's JSON before it is parsed: none may nest deeper than 64 levels (walking through
// a value takes stack for each), and all texts that one of these sees may not have objects with so
// many members that reading them takes long. Whether a text is JSON is the parser's matter.
class JsonShape {
 public:
  // What is wrong with one more text, to be read behind its name, or "".
  std::string error(std::string_view text);

 private:
  int64_t squares_ = 0;  // of the objects' numbers of members, summed
};

// A body, which may be anything: kInvalidArgument if it is no JSON object or of a wrong shape. Members
// keep their order, which schemas and templates need.
Result<nlohmann::ordered_json> parse_json_object(std::string_view text);

// Each reads a field's value into target; the error names the field, the value and what it must be.
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
// An object from token ids, which JSON writes as texts, to numbers.
Result<void> read_value(const char* field,
                        const nlohmann::ordered_json& value,
                        std::map<int64_t, double>& target);

std::optional<int64_t> whole_number(const nlohmann::ordered_json& value);

// "top_k: must be a whole number, not "seven"".
tl::unexpected<Error> wrong_value(std::string_view field,
                                  std::string_view wanted,
                                  const nlohmann::ordered_json& value);

}  // namespace warprow
