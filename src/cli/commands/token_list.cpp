// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/token_list.h"

#include <algorithm>
#include <charconv>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr std::string_view kBlanks = " \t\r\n,";

Result<TokenId> parse_id(std::string_view word, int32_t vocab_size) {
  TokenId id = -1;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error == std::errc::invalid_argument || end != word.data() + word.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("token ids: '{}' is not a whole number", word));
  }
  if (error != std::errc() || id < 0 || id >= vocab_size) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("token ids: {} is outside the vocabulary [0, {}]", word, vocab_size - 1));
  }
  return id;
}

// The entries of a JSON list as words, like the words of a plain list.
Result<std::vector<std::string>> json_words(std::string_view text) {
  nlohmann::json root = nlohmann::json::parse(text, nullptr, false);
  if (root.is_object()) {
    root = root.value("token_ids", nlohmann::json());
  }
  if (!root.is_array()) {
    return fail(ErrorCode::kInvalidArgument,
                "token ids: must be a JSON list, or an object with token_ids");
  }
  std::vector<std::string> words;
  for (const nlohmann::json& entry : root) {
    words.push_back(entry.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
  }
  return words;
}

std::vector<std::string> plain_words(std::string_view text) {
  std::vector<std::string> words;
  while (true) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) {
      return words;
    }
    const size_t end = std::min(text.find_first_of(kBlanks), text.size());
    words.emplace_back(text.substr(0, end));
    text.remove_prefix(end);
  }
}

}  // namespace

Result<std::vector<TokenId>> parse_token_list(std::string_view text, int32_t vocab_size) {
  const size_t begin = text.find_first_not_of(kBlanks);
  const bool is_json =
      begin != std::string_view::npos && (text[begin] == '[' || text[begin] == '{');
  const Result<std::vector<std::string>> words =
      is_json ? json_words(text) : Result<std::vector<std::string>>(plain_words(text));
  if (!words) {
    return tl::unexpected(words.error());
  }
  std::vector<TokenId> ids;
  for (const std::string& word : *words) {
    const Result<TokenId> id = parse_id(word, vocab_size);
    if (!id) {
      return tl::unexpected(id.error());
    }
    ids.push_back(*id);
  }
  return ids;
}

}  // namespace warprow
