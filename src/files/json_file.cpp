// SPDX-License-Identifier: Apache-2.0
#include "files/json_file.h"

#include "files/mapped_file.h"

#include <algorithm>
#include <set>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using nlohmann::json;

tl::unexpected<Error> syntax_error(std::string_view text, const std::string& where, size_t byte) {
  const std::string_view before = text.substr(0, byte == 0 ? 0 : byte - 1);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t line_begin = before.rfind('\n') + 1;  // npos + 1 is 0
  const size_t column = before.size() - line_begin + 1;
  if (byte > text.size()) {
    return fail(
        ErrorCode::kCorrupt,
        fmt::format("'{}': the JSON ends early, at line {} column {}", where, line, column));
  }
  return fail(ErrorCode::kCorrupt,
              fmt::format("'{}': not valid JSON at line {} column {}", where, line, column));
}

}  // namespace

Result<json> parse_json(std::string_view text,
                        const std::string& where,
                        std::string* repeated_key) {
  bool too_deep = false;
  std::set<std::string> outer_keys;
  const auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    if (depth >= kMaxJsonDepth) {
      too_deep = true;
      return false;  // drops it, so the value stays shallow
    }
    const bool outer_key =
        repeated_key != nullptr && event == json::parse_event_t::key && depth == 1;
    if (outer_key && !outer_keys.insert(parsed.get_ref<const std::string&>()).second &&
        repeated_key->empty()) {
      *repeated_key = parsed.get_ref<const std::string&>();
    }
    return true;
  };
  if (repeated_key != nullptr) {
    repeated_key->clear();
  }
  try {
    json value = json::parse(text.begin(), text.end(), watch);
    if (too_deep) {
      return fail(ErrorCode::kCorrupt,
                  fmt::format("'{}': the JSON nests deeper than {}", where, kMaxJsonDepth));
    }
    return value;
  } catch (const json::parse_error& error) {
    return syntax_error(text, where, error.byte);
  } catch (const json::exception&) {  // a number that no double can hold
    return fail(ErrorCode::kCorrupt,
                fmt::format("'{}': the JSON holds a number out of range", where));
  }
}

Result<json> read_json_file(const std::string& path) {
  const Result<MappedFile> file = MappedFile::open(path);
  if (!file) {
    return tl::unexpected(file.error());
  }
  const std::span<const std::byte> bytes = file->bytes();
  return parse_json({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace warprow
