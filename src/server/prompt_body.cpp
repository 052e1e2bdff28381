// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_body.h"

#include "server/json_value.h"

#include <cstdint>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

}  // namespace

Result<std::vector<TokenId>> read_token_ids(const char* field, const Json& value) {
  std::vector<int64_t> numbers;
  if (Result<void> read = read_value(field, value, numbers); !read) {
    return tl::unexpected(read.error());
  }
  std::vector<TokenId> ids;
  ids.reserve(numbers.size());
  for (const int64_t number : numbers) {
    if (number < 0 || number > std::numeric_limits<TokenId>::max()) {
      return wrong_value(field, "a list of token ids", value);
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  return ids;
}

Result<std::vector<TextOrIds>> read_prompts(const char* field, const Json& value) {
  const bool is_list =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (is_list && value.size() > kMaxPrompts) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format(
            "{}: {} prompts in one request, must be {} or less", field, value.size(), kMaxPrompts));
  }
  std::vector<TextOrIds> prompts;
  for (const Json& prompt : is_list ? value : Json::array({value})) {
    if (prompt.is_string() && (!is_list || value[0].is_string())) {
      prompts.emplace_back(prompt.get<std::string>());
      continue;
    }
    Result<std::vector<TokenId>> ids = read_token_ids(field, prompt);
    if (!ids || (is_list && value[0].is_string())) {
      return wrong_value(field, "text, a list of token ids, or a list of either kind", value);
    }
    prompts.emplace_back(*std::move(ids));
  }
  return prompts;
}

}  // namespace warprow
