// SPDX-License-Identifier: Apache-2.0
#include "server/json_value.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxJsonDepth = 64;

// The time to parse an ordered object grows with the square of its number of members.
constexpr int64_t kMaxSquares = 100'000'000;  // one object of 10,000 members

// A short rendering for a message, cut between characters.
std::string shown(const Json& value) {
  constexpr size_t kLongest = 40;
  const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > kLongest ? text.substr(0, kLongest - 3) + "..." : text;
}

}  // namespace

std::string JsonShape::error(std::string_view text) {
  std::vector<int64_t> members{0};  // number of members in each open bracket
  bool in_text = false;
  for (size_t i = 0; i < text.size() && squares_ <= kMaxSquares; ++i) {
    const char c = text[i];
    if (in_text) {
      i += c == '\\' ? 1 : 0;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      if (members.size() > kMaxJsonDepth + 1) {
        return fmt::format("nests deeper than {} levels", kMaxJsonDepth);
      }
    } else if ((c == '}' || c == ']') && members.size() > 1) {
      members.pop_back();
    } else if (c == ':') {
      squares_ += 2 * members.back()++;  // the square grows by 2n + 1
    }
  }
  return squares_ > kMaxSquares ? "has objects with too many members" : "";
}

tl::unexpected<Error> wrong_value(std::string_view field,
                                  std::string_view wanted,
                                  const Json& value) {
  return fail(ErrorCode::kInvalidArgument,
              fmt::format("{}: must be {}, not {}", field, wanted, shown(value)));
}

Result<Json> parse_json_object(std::string_view text) {
  if (const std::string error = JsonShape().error(text); !error.empty()) {
    return fail(ErrorCode::kInvalidArgument, "the body " + error);
  }
  Json root = Json::parse(text, nullptr, false);
  if (!root.is_object()) {
    return fail(ErrorCode::kInvalidArgument,
                root.is_discarded() ? "the body is not JSON" : "the body must be a JSON object");
  }
  return root;
}

std::optional<int64_t> whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    const bool fits = number <= uint64_t{std::numeric_limits<int64_t>::max()};
    return fits ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  constexpr double kExact = 9007199254740992.0;  // 2^53; larger whole numbers may not be exact
  if (value.is_number_float()) {
    const auto number = value.get<double>();
    if (std::abs(number) <= kExact && std::trunc(number) == number) {
      return static_cast<int64_t>(number);
    }
  }
  return std::nullopt;
}

Result<void> read_value(const char* field, const Json& value, bool& target) {
  if (!value.is_boolean()) {
    return wrong_value(field, "true or false", value);
  }
  target = value.get<bool>();
  return {};
}

Result<void> read_value(const char* field, const Json& value, std::string& target) {
  if (!value.is_string()) {
    return wrong_value(field, "text", value);
  }
  target = value.get<std::string>();
  return {};
}

Result<void> read_value(const char* field, const Json& value, std::optional<double>& target) {
  if (!value.is_number()) {
    return wrong_value(field, "a number", value);
  }
  target = value.get<double>();
  return {};
}

Result<void> read_value(const char* field, const Json& value, std::optional<int64_t>& target) {
  target = whole_number(value);
  if (!target) {
    return wrong_value(field, "a whole number of 64 bits", value);
  }
  return {};
}

Result<void> read_value(const char* field, const Json& value, std::vector<std::string>& target) {
  const std::string wanted = "text or a list of texts";
  if (value.is_string()) {
    target = {value.get<std::string>()};
    return {};
  }
  if (!value.is_array()) {
    return wrong_value(field, wanted, value);
  }
  target.clear();
  for (const Json& entry : value) {
    if (!entry.is_string()) {
      return wrong_value(field, wanted, value);
    }
    target.push_back(entry.get<std::string>());
  }
  return {};
}

Result<void> read_value(const char* field, const Json& value, std::vector<int64_t>& target) {
  if (!value.is_array()) {
    return wrong_value(field, "a list of token ids", value);
  }
  target.clear();
  for (const Json& entry : value) {
    const std::optional<int64_t> id = whole_number(entry);
    if (!id) {
      return wrong_value(field, "a list of token ids", value);
    }
    target.push_back(*id);
  }
  return {};
}

Result<void> read_value(const char* field,
                        const Json& value,
                        std::optional<std::vector<int64_t>>& target) {
  return read_value(field, value, target.emplace());
}

Result<std::vector<TokenId>> read_token_ids(const char* field, const Json& value, TokenId least) {
  std::vector<int64_t> numbers;
  if (Result<void> read = read_value(field, value, numbers); !read) {
    return tl::unexpected(read.error());
  }
  std::vector<TokenId> ids;
  ids.reserve(numbers.size());
  for (const int64_t number : numbers) {
    if (number < least || number > std::numeric_limits<TokenId>::max()) {
      return wrong_value(field, "a list of token ids", value);
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

Result<void> read_value(const char* field, const Json& value, std::map<int64_t, double>& target) {
  const auto wrong = [&] {
    return wrong_value(field, "an object of token ids and numbers", value);
  };
  if (!value.is_object()) {
    return wrong();
  }
  target.clear();
  for (const auto& [name, number] : value.items()) {
    int64_t id = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data(), end, id);
    if (parsed.ec != std::errc() || parsed.ptr != end || !number.is_number()) {
      return wrong();
    }
    target[id] = number.get<double>();
  }
  return {};
}

Json member_of(const Json& object, const char* name) {
  return object.is_object() && object.contains(name) ? object[name] : Json();
}

}  // namespace warprow
