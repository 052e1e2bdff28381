// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/responses_body.h"

#include "server/endpoints/chat_body.h"
#include "server/endpoints/foreign_field.h"
#include "server/json_value.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

// Text, or a list of parts of type input_text, output_text or text.
Result<Json> read_content(const std::string& field, const Json& value) {
  if (value.is_string()) {
    return value;
  }
  if (!value.is_array()) {
    return wrong_value(field, "text or a list of text parts", value);
  }
  Json parts = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const Json type = member_of(value[i], "type");
    const bool is_text = type == "input_text" || type == "output_text" || type == "text";
    if (!is_text || !member_of(value[i], "text").is_string()) {
      return wrong_value(
          fmt::format("{}[{}]", field, i), "a part of type input_text or output_text", value[i]);
    }
    parts.push_back({{"type", "text"}, {"text", value[i]["text"]}});
  }
  return parts;
}

// Adds an earlier tool call to the preceding assistant message, or to a new one.
void add_call(Json& messages, const Json& item) {
  const bool joins = !messages.empty() && messages.back()["role"] == "assistant";
  if (!joins) {
    messages.push_back({{"role", "assistant"}, {"content", ""}});
  }
  messages.back()["tool_calls"].push_back(
      {{"id", member_of(item, "call_id")},
       {"type", "function"},
       {"function",
        {{"name", member_of(item, "name")}, {"arguments", member_of(item, "arguments")}}}});
}

// Adds earlier reasoning, which belongs to the assistant's message or call behind it. The chat template decides whether
// the model sees it. Items without text, as encrypted ones, add nothing.
void add_reasoning(Json& messages, const Json& item) {
  std::string text;
  const Json content = member_of(item, "content");
  for (const Json& part : content.is_array() ? content : Json::array()) {
    const Json each = member_of(part, "text");
    text += each.is_string() ? each.get<std::string>() : "";
  }
  if (!text.empty()) {
    messages.push_back({{"role", "assistant"}, {"content", ""}, {"reasoning_content", text}});
  }
}

// Whether the last message is earlier reasoning alone.
bool ends_with_reasoning(const Json& messages) {
  return !messages.empty() && messages.back().contains("reasoning_content") &&
         messages.back()["content"] == "" && !messages.back().contains("tool_calls");
}

Result<void> add_item(const std::string& field,
                      const Json& item,
                      JsonShape& shape,
                      Json& messages) {
  const Json type = member_of(item, "type");
  if (type == "function_call") {
    const Json arguments = member_of(item, "arguments");
    if (Result<void> good = check_arguments(field + ".arguments", arguments, shape); !good) {
      return good;
    }
    add_call(messages, item);
    return {};
  }
  if (type == "reasoning") {
    add_reasoning(messages, item);
    return {};
  }
  const bool is_output = type == "function_call_output";
  if (!is_output && !type.is_null() && type != "message") {
    return wrong_value(
        field, "an item of type message, function_call, function_call_output or reasoning", item);
  }
  const char* content_name = is_output ? "output" : "content";
  Result<Json> content =
      read_content(fmt::format("{}.{}", field, content_name), member_of(item, content_name));
  if (!content) {
    return tl::unexpected(content.error());
  }
  const Json role = is_output ? Json("tool") : member_of(item, "role");
  Json message;
  message["role"] = role == "developer" ? Json("system") : role;
  message["content"] = *std::move(content);
  if (is_output) {
    message["tool_call_id"] = member_of(item, "call_id");
  }
  if (ends_with_reasoning(messages)) {
    if (role == "assistant") {
      message["reasoning_content"] = messages.back()["reasoning_content"];
    }
    messages.erase(messages.size() - 1);
  }
  messages.push_back(std::move(message));
  return {};
}

Result<Json> read_messages_of(const Json& root) {
  Json messages = Json::array();
  const Json instructions = member_of(root, "instructions");
  if (!instructions.is_null()) {
    if (!instructions.is_string()) {
      return wrong_value("instructions", "text", instructions);
    }
    messages.push_back({{"role", "system"}, {"content", instructions}});
  }
  const Json input = member_of(root, "input");
  if (input.is_string()) {
    messages.push_back({{"role", "user"}, {"content", input}});
    return messages;
  }
  if (!input.is_array() || input.empty()) {
    return wrong_value("input", "text or a list of one item or more", input);
  }
  JsonShape arguments;
  for (size_t i = 0; i < input.size(); ++i) {
    if (Result<void> added = add_item(fmt::format("input[{}]", i), input[i], arguments, messages);
        !added) {
      return tl::unexpected(added.error());
    }
  }
  if (ends_with_reasoning(messages)) {
    messages.erase(messages.size() - 1);
  }
  return messages;
}

// A tool is flat in /v1/responses and has a member `function` in a chat.
Result<Json> tools_of_responses(const Json& value) {
  if (!value.is_array()) {
    return wrong_value("tools", "a list of functions", value);
  }
  Json out = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    if (member_of(value[i], "type") != "function") {
      return wrong_value(fmt::format("tools[{}]", i), "an object with type \"function\"", value[i]);
    }
    Json function = value[i];
    function.erase("type");
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

Json chat_tool_choice(const Json& value) {
  const Json name = member_of(value, "name");
  return name.is_null() ? value : Json{{"type", "function"}, {"function", {{"name", name}}}};
}

// text.format has the members of json_schema beside the type; response_format nests them.
Json response_format(const Json& format) {
  if (member_of(format, "type") != "json_schema") {
    return format;
  }
  Json schema = format;
  schema.erase("type");
  return Json{{"type", "json_schema"}, {"json_schema", std::move(schema)}};
}

// Returns one member of an object, or null. The other members go into the chat under unknown names, so that they are
// reported as ignored.
Result<Json> read_member(const std::string& name,
                         const char* wanted,
                         const Json& value,
                         Json& chat) {
  if (!value.is_object()) {
    return wrong_value(name, "an object", value);
  }
  for (const auto& [key, part] : value.items()) {
    if (key != wanted) {
      chat[fmt::format("{}.{}", name, key)] = part;
    }
  }
  return member_of(value, wanted);
}

// Reads `include`, the optional parts of a response. Clients that store the conversation ask for encrypted reasoning,
// which they can send back. The server's responses have the reasoning as text, so the field is ignored.
Result<void> read_include(const Json& value, Json& chat) {
  if (!value.is_array()) {
    return wrong_value("include", "a list", value);
  }
  for (const Json& part : value) {
    if (part != "reasoning.encrypted_content") {
      return fail(ErrorCode::kUnsupported, "include: not supported");
    }
    chat["include"] = value;  // so that it is reported as ignored
  }
  return {};
}

// A stream always ends with its usage, so include_usage has no effect.
Result<void> read_responses_stream_options(const Json& value, Json& chat) {
  if (!value.is_object()) {
    return wrong_value("stream_options", "an object", value);
  }
  for (const auto& [key, option] : value.items()) {
    if (key != "include_usage" && option != false) {
      chat["stream_options." + key] = option;
    }
  }
  return {};
}

// Fields of chats that /v1/responses does not have, or writes in another way.
constexpr ForeignField kForeignToResponses[] = {
    {"echo", "false"},
    {"logprob_token_ids", "null"},
    {"logprobs", "false"},
    {"max_completion_tokens", "null", "max_output_tokens"},
    {"max_tokens", "null", "max_output_tokens"},
    {"messages", "null", "input"},
    {"n", "1"},
    {"prompt", "null"},
    {"prompt_logprobs", "null"},
    {"reasoning_effort", "null", "reasoning.effort"},
    {"response_format", "null", "text.format"},
    {"return_token_ids", "false"},
    {"return_tokens_as_token_ids", "false"},
    {"top_logprobs", "0"},
    {"truncation", R"("disabled")"},
};

Result<void> read_responses_field(const std::string& name, const Json& value, Json& chat) {
  const auto put = [&](const char* as) {
    return [&chat, as](Json json) { chat[as] = std::move(json); };
  };
  if (name == "input" || name == "instructions") {
    return {};
  }
  if (name == "max_output_tokens") {
    chat["max_completion_tokens"] = value;
  } else if (name == "tools") {
    return tools_of_responses(value).map(put("tools"));
  } else if (name == "tool_choice") {
    chat["tool_choice"] = chat_tool_choice(value);
  } else if (name == "text") {
    return read_member(name, "format", value, chat)
        .map(response_format)
        .map(put("response_format"));
  } else if (name == "reasoning") {
    return read_member(name, "effort", value, chat).map(put("reasoning_effort"));
  } else if (name == "include") {
    return read_include(value, chat);
  } else if (name == "stream_options") {
    return read_responses_stream_options(value, chat);
  } else if (const ForeignField* foreign = find_foreign(kForeignToResponses, name)) {
    return check_harmless(*foreign, "responses", value);
  } else if (name == "previous_response_id" || name == "conversation") {
    return fail(ErrorCode::kUnsupported, name + ": not supported, responses are not stored");
  } else if (name == "background") {
    if (value != false) {
      return fail(ErrorCode::kUnsupported, "background: not supported, responses are not stored");
    }
  } else if (name != "metadata") {
    chat[name] = value;  // a chat field, or unknown there too
  }
  return {};
}

Json echoed_members(const Json& root) {
  const auto given = [&](const char* name, const Json& otherwise) {
    const Json value = member_of(root, name);
    return value.is_null() ? otherwise : value;
  };
  Json out;
  out["instructions"] = member_of(root, "instructions");
  out["max_output_tokens"] = member_of(root, "max_output_tokens");
  out["metadata"] = given("metadata", Json::object());
  out["parallel_tool_calls"] = given("parallel_tool_calls", true);
  out["previous_response_id"] = nullptr;
  out["reasoning"] = given("reasoning", {{"effort", nullptr}, {"summary", nullptr}});
  out["store"] = false;
  out["temperature"] = given("temperature", 1.0);
  out["text"] = given("text", {{"format", {{"type", "text"}}}});
  out["tool_choice"] = given("tool_choice", "auto");
  out["tools"] = given("tools", Json::array());
  out["top_p"] = given("top_p", 1.0);
  out["truncation"] = "disabled";
  return out;
}

}  // namespace

Result<ResponsesBody> parse_responses_body(std::string_view body) {
  const Result<Json> root = parse_json_object(body);
  if (!root) {
    return tl::unexpected(root.error());
  }
  Result<Json> messages = read_messages_of(*root);
  if (!messages) {
    return tl::unexpected(messages.error());
  }
  Json chat;
  chat["messages"] = *std::move(messages);
  for (const auto& [name, value] : root->items()) {
    if (value.is_null()) {
      continue;
    }
    if (Result<void> read = read_responses_field(name, value, chat); !read) {
      return tl::unexpected(read.error());
    }
  }
  return ResponsesBody{std::move(chat), echoed_members(*root)};
}

}  // namespace warprow
