// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/messages_body.h"

#include "server/endpoints/foreign_field.h"
#include "server/json_value.h"

#include <string>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

tl::unexpected<Error> unsupported_block(const std::string& field, const Json& type) {
  return fail(ErrorCode::kUnsupported,
              fmt::format("{}: blocks of type {} are not supported", field, type.dump()));
}

// Text, or a list of text blocks, whose texts are joined.
Result<std::string> read_text(const std::string& field, const Json& value) {
  if (value.is_null()) {
    return std::string();
  }
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return wrong_value(field, "text or a list of text blocks", value);
  }
  std::string out;
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", field, i);
    const Json type = member_of(value[i], "type");
    if (type.is_string() && type != "text") {
      return unsupported_block(where, type);
    }
    if (!type.is_string() || !member_of(value[i], "text").is_string()) {
      return wrong_value(where, "a block of type text", value[i]);
    }
    out += (out.empty() ? "" : "\n") + value[i]["text"].get<std::string>();
  }
  return out;
}

// A message's blocks, taken apart.
struct Blocks {
  std::string text;
  bool has_text = false;
  std::string reasoning;
  Json calls = Json::array();    // of the assistant
  Json results = Json::array();  // messages of role tool
};

Result<void> add_tool_use(const std::string& field, const Json& block, Blocks& blocks) {
  const Json name = member_of(block, "name");
  const Json input = member_of(block, "input");
  if (!name.is_string() || !(input.is_object() || input.is_null())) {
    return wrong_value(field, "a tool_use with a name and an input object", block);
  }
  blocks.calls.push_back(
      {{"id", member_of(block, "id")},
       {"type", "function"},
       {"function", {{"name", name}, {"arguments", input.is_null() ? "{}" : input.dump()}}}});
  return {};
}

Result<void> add_result(const std::string& field, const Json& block, Blocks& blocks) {
  Result<std::string> text = read_text(field + ".content", member_of(block, "content"));
  if (!text) {
    return tl::unexpected(text.error());
  }
  const Json id = member_of(block, "tool_use_id");
  if (!id.is_string()) {
    return wrong_value(field + ".tool_use_id", "text", id);
  }
  blocks.results.push_back({{"role", "tool"}, {"content", *text}, {"tool_call_id", id}});
  return {};
}

Result<void> add_block(const std::string& field,
                       const Json& block,
                       bool is_assistant,
                       Blocks& blocks) {
  const Json type = member_of(block, "type");
  if (!type.is_string()) {
    return wrong_value(field, "an object with a type", block);
  }
  if (type == "text") {
    const Json text = member_of(block, "text");
    if (!text.is_string()) {
      return wrong_value(field + ".text", "text", text);
    }
    blocks.text += (blocks.has_text ? "\n" : "") + text.get<std::string>();
    blocks.has_text = true;
    return {};
  }
  if (is_assistant && type == "tool_use") {
    return add_tool_use(field, block, blocks);
  }
  if (!is_assistant && type == "tool_result") {
    return add_result(field, block, blocks);
  }
  if (is_assistant && type == "thinking") {
    const Json text = member_of(block, "thinking");
    if (!text.is_string()) {
      return wrong_value(field + ".thinking", "text", text);
    }
    blocks.reasoning += text.get<std::string>();
    return {};
  }
  if (is_assistant && type == "redacted_thinking") {
    return {};  // written by another server, which alone can read it
  }
  return unsupported_block(field, type);
}

Result<Blocks> read_messages_content(const std::string& field,
                                     const Json& value,
                                     bool is_assistant) {
  Blocks out;
  if (value.is_string()) {
    out.text = value.get<std::string>();
    out.has_text = true;
    return out;
  }
  if (!value.is_array()) {
    return wrong_value(field, "text or a list of blocks", value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    Result<void> added = add_block(fmt::format("{}[{}]", field, i), value[i], is_assistant, out);
    if (!added) {
      return tl::unexpected(added.error());
    }
  }
  return out;
}

Result<void> add_message(const std::string& field, const Json& value, Json& messages) {
  const Json role = member_of(value, "role");
  if (role != "user" && role != "assistant") {
    return wrong_value(field + ".role", "user or assistant", role);
  }
  const bool is_assistant = role == "assistant";
  Result<Blocks> blocks =
      read_messages_content(field + ".content", member_of(value, "content"), is_assistant);
  if (!blocks) {
    return tl::unexpected(blocks.error());
  }
  for (Json& result : blocks->results) {
    messages.push_back(std::move(result));
  }
  const bool has_more = blocks->has_text || !blocks->calls.empty() || !blocks->reasoning.empty();
  if (!has_more && !blocks->results.empty()) {
    return {};
  }
  Json message = {{"role", role}, {"content", blocks->text}};
  if (!blocks->reasoning.empty()) {
    message["reasoning_content"] = blocks->reasoning;
  }
  if (!blocks->calls.empty()) {
    message["tool_calls"] = std::move(blocks->calls);
  }
  messages.push_back(std::move(message));
  return {};
}

Result<void> read_turns(const Json& root, Json& chat) {
  Json messages = Json::array();
  Result<std::string> system = read_text("system", member_of(root, "system"));
  if (!system) {
    return tl::unexpected(system.error());
  }
  if (!system->empty()) {
    messages.push_back({{"role", "system"}, {"content", *system}});
  }
  const Json list = member_of(root, "messages");
  if (!list.is_array() || list.empty()) {
    return wrong_value("messages", "a list of one message or more", list);
  }
  for (size_t i = 0; i < list.size(); ++i) {
    if (Result<void> added = add_message(fmt::format("messages[{}]", i), list[i], messages);
        !added) {
      return added;
    }
  }
  const Json& last = messages.back();
  if (last["role"] == "assistant" && !last.contains("tool_calls")) {
    chat["continue_final_message"] = true;
    chat["add_generation_prompt"] = false;
  }
  chat["messages"] = std::move(messages);
  return {};
}

Result<Json> tools_of_messages(const Json& value) {
  if (!value.is_array()) {
    return wrong_value("tools", "a list of tools", value);
  }
  Json out = Json::array();
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string field = fmt::format("tools[{}]", i);
    const Json& tool = value[i];
    const Json type = member_of(tool, "type");
    if (!type.is_null() && type != "custom") {
      return fail(ErrorCode::kUnsupported,
                  fmt::format("{}: tools of type {} are not supported", field, type.dump()));
    }
    if (!member_of(tool, "name").is_string() || !member_of(tool, "input_schema").is_object()) {
      return wrong_value(field, "an object with name and input_schema", tool);
    }
    Json function = {{"name", tool["name"]}};
    if (const Json description = member_of(tool, "description"); !description.is_null()) {
      if (!description.is_string()) {
        return wrong_value(field + ".description", "text", description);
      }
      function["description"] = description;
    }
    function["parameters"] = tool["input_schema"];
    out.push_back({{"type", "function"}, {"function", std::move(function)}});
  }
  return out;
}

Result<void> read_messages_tool_choice(const Json& value, Json& chat) {
  const Json type = member_of(value, "type");
  if (type == "auto" || type == "none") {
    chat["tool_choice"] = type;
  } else if (type == "any") {
    chat["tool_choice"] = "required";
  } else if (type == "tool" && member_of(value, "name").is_string()) {
    chat["tool_choice"] = {{"type", "function"}, {"function", {{"name", value["name"]}}}};
  } else {
    return wrong_value(
        "tool_choice", "an object of type auto, any, tool (with a name) or none", value);
  }
  if (member_of(value, "disable_parallel_tool_use") == true) {
    chat["parallel_tool_calls"] = false;
  }
  return {};
}

// Templates that know thinking take enable_thinking; others do not read it.
Result<void> read_thinking(const Json& value, Json& chat) {
  const Json type = member_of(value, "type");
  if (type != "enabled" && type != "disabled" && type != "adaptive") {
    return wrong_value("thinking", "an object of type enabled, adaptive or disabled", value);
  }
  chat["chat_template_kwargs"] = {{"enable_thinking", type != "disabled"}};
  if (const Json budget = member_of(value, "budget_tokens"); !budget.is_null()) {
    chat["thinking.budget_tokens"] = budget;
  }
  return {};
}

// {"format": {"type": "json_schema", "schema"}, "effort"}.
Result<void> read_output_config(const Json& value, Json& chat) {
  if (!value.is_object()) {
    return wrong_value("output_config", "an object", value);
  }
  const Json format = member_of(value, "format");
  if (!format.is_null()) {
    if (member_of(format, "type") != "json_schema" || !member_of(format, "schema").is_object()) {
      return wrong_value(
          "output_config.format", "an object of type json_schema with a schema", format);
    }
    chat["response_format"] = {{"type", "json_schema"},
                               {"json_schema", {{"name", "output"}, {"schema", format["schema"]}}}};
  }
  if (const Json effort = member_of(value, "effort"); !effort.is_null()) {
    chat["reasoning_effort"] = effort;
  }
  return {};
}

// Fields of chats that /v1/messages does not have, or writes in another way.
constexpr ForeignField kForeignToMessages[] = {
    {"add_generation_prompt", "true"},
    {"continue_final_message", "false"},
    {"echo", "false"},
    {"logprob_token_ids", "null"},
    {"logprobs", "false"},
    {"max_completion_tokens", "null", "max_tokens"},
    {"n", "1"},
    {"parallel_tool_calls", "true", "tool_choice.disable_parallel_tool_use"},
    {"prompt", "null"},
    {"prompt_logprobs", "null"},
    {"reasoning_effort", "null", "output_config.effort"},
    {"response_format", "null", "output_config.format"},
    {"return_token_ids", "false"},
    {"return_tokens_as_token_ids", "false"},
    {"stop", "null", "stop_sequences"},
    {"stream_options", "null"},
    {"top_logprobs", "0"},
};

Result<void> read_messages_field(const std::string& name, const Json& value, Json& chat) {
  if (name == "messages" || name == "system" || name == "metadata" || name == "cache_control") {
    return {};
  }
  if (name == "max_tokens") {
    chat["max_completion_tokens"] = value;
  } else if (name == "stop_sequences") {
    chat["stop"] = value;
  } else if (name == "tools") {
    return tools_of_messages(value).map([&](Json tools) { chat["tools"] = std::move(tools); });
  } else if (name == "tool_choice") {
    return read_messages_tool_choice(value, chat);
  } else if (name == "thinking") {
    return read_thinking(value, chat);
  } else if (name == "output_config") {
    return read_output_config(value, chat);
  } else if (name == "mcp_servers" || name == "container") {
    return fail(ErrorCode::kUnsupported, name + ": not supported, the server runs no tools");
  } else if (const ForeignField* foreign = find_foreign(kForeignToMessages, name)) {
    return check_harmless(*foreign, "messages", value);
  } else {
    chat[name] = value;  // a chat field, or unknown there too
  }
  return {};
}

}  // namespace

Result<Json> parse_messages_body(std::string_view body, bool for_count) {
  const Result<Json> root = parse_json_object(body);
  if (!root) {
    return tl::unexpected(root.error());
  }
  if (!for_count && !member_of(*root, "max_tokens").is_number_integer()) {
    return wrong_value("max_tokens", "a whole number", member_of(*root, "max_tokens"));
  }
  Json chat;
  if (Result<void> read = read_turns(*root, chat); !read) {
    return tl::unexpected(read.error());
  }
  for (const auto& [name, value] : root->items()) {
    if (value.is_null()) {
      continue;
    }
    if (Result<void> read = read_messages_field(name, value, chat); !read) {
      return tl::unexpected(read.error());
    }
  }
  return chat;
}

}  // namespace warprow
