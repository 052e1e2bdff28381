// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// One event of a streamed answer of OpenAI's API, of completions or of chat, as a client reads it. Of
// several choices the first counts; fields that are absent, null or of another type are empty.
struct ApiEvent {
  bool has_choice = false;
  bool has_role = false;
  bool has_tool_calls = false;
  std::string text;
  std::string reasoning;
  std::string finish_reason;
  std::string error;  // what the server says of a failure, after the answer's head
  std::optional<int64_t> num_prompt_tokens;
  std::optional<int64_t> num_output_tokens;
};

// Nothing for what is no JSON object, as "[DONE]".
std::optional<ApiEvent> read_api_event(std::string_view data);

}  // namespace warprow
