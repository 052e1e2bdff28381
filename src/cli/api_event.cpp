// SPDX-License-Identifier: Apache-2.0
#include "cli/api_event.h"

#include "cli/flags/server_flags.h"

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

std::string text_of_field(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

bool is_set(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  return found != object.end() && !found->is_null();
}

std::optional<int64_t> count_of(const nlohmann::json& object, const char* field) {
  const auto found = object.find(field);
  if (found == object.end() || !found->is_number_integer()) {
    return std::nullopt;
  }
  return found->get<int64_t>();
}

void read_choice(const nlohmann::json& choice, ApiEvent& out) {
  out.has_choice = true;
  out.finish_reason = text_of_field(choice, "finish_reason");
  out.text = text_of_field(choice, "text");
  const auto delta = choice.find("delta");
  if (delta == choice.end() || !delta->is_object()) {
    return;
  }
  out.has_role = is_set(*delta, "role");
  out.has_tool_calls = is_set(*delta, "tool_calls");
  out.text += text_of_field(*delta, "content");
  out.reasoning = text_of_field(*delta, "reasoning_content");
}

}  // namespace

std::optional<ApiEvent> read_api_event(std::string_view data) {
  const auto event = nlohmann::json::parse(data, nullptr, /*allow_exceptions=*/false);
  if (!event.is_object()) {
    return std::nullopt;
  }
  ApiEvent out;
  if (is_set(event, "error")) {
    out.error = refusal_text({.status = 200, .body = std::string(data)});
  }
  if (const auto usage = event.find("usage"); usage != event.end() && usage->is_object()) {
    out.num_prompt_tokens = count_of(*usage, "prompt_tokens");
    out.num_output_tokens = count_of(*usage, "completion_tokens");
  }
  const auto choices = event.find("choices");
  if (choices != event.end() && choices->is_array() && !choices->empty() &&
      choices->front().is_object()) {
    read_choice(choices->front(), out);
  }
  return out;
}

}  // namespace warprow
