// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// One event of a streamed response of OpenAI's API, completions or chat. Only the first choice is read. Fields that are
// absent, null or of another type are empty.
struct ApiEvent {
  bool has_choice = false;
  bool has_role = false;
  bool has_tool_calls = false;
  std::string text;
  std::string reasoning;
  std::string finish_reason;
  std::string error;  // a failure that the server reports after the response's head
  std::optional<int64_t> num_prompt_tokens;
  std::optional<int64_t> num_output_tokens;
};

// nullopt if the data is not a JSON object, such as "[DONE]".
std::optional<ApiEvent> read_api_event(std::string_view data);

}  // namespace warprow
