// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/chat_body.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = OrderedJson;

Json member(const Json& object, const char* name) {
  return object.contains(name) ? object[name] : Json();
}

// Accepts text or a list of text parts. Parts are joined unless the template iterates over them itself.
Result<void> check_content(const std::string& field, const Json& value) {
  if (value.is_string()) {
    return {};
  }
  if (!value.is_array()) {
    return wrong_value(field, "text or a list of text parts", value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& part = value[i];
    const bool is_text =
        part.is_object() && member(part, "type") == "text" && member(part, "text").is_string();
    if (!is_text) {
      return wrong_value(fmt::format("{}[{}]", field, i), "a part of type text", part);
    }
  }
  return {};
}

Result<void> check_tool_calls(const std::string& field, const Json& value, JsonShape& shape) {
  if (!value.is_array()) {
    return wrong_value(field, "a list of tool calls", value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const Json function = value[i].is_object() ? member(value[i], "function") : Json();
    const bool is_call = function.is_object() && member(function, "name").is_string();
    if (!is_call) {
      return wrong_value(fmt::format("{}[{}]", field, i), "a function with a name", value[i]);
    }
    if (Result<void> good = check_arguments(fmt::format("{}[{}].function.arguments", field, i),
                                            member(function, "arguments"),
                                            shape);
        !good) {
      return good;
    }
  }
  return {};
}

Result<Json> read_message(const std::string& field,
                          const Json& value,
                          JsonShape& shape,
                          std::vector<std::string>& ignored) {
  if (!value.is_object()) {
    return wrong_value(field, "an object with role and content", value);
  }
  Json message;
  std::string role;
  if (Result<void> read = read_value((field + ".role").c_str(), member(value, "role"), role);
      !read) {
    return tl::unexpected(read.error());
  }
  message["role"] = role;
  const Json calls = member(value, "tool_calls");
  Json content = member(value, "content");
  if (content.is_null() && !calls.is_null()) {
    content = "";
  }
  if (Result<void> good = check_content(field + ".content", content); !good) {
    return tl::unexpected(good.error());
  }
  message["content"] = std::move(content);
  for (const auto& [key, part] : value.items()) {
    if (part.is_null() || key == "role" || key == "content") {
      continue;
    }
    if (key == "tool_calls") {
      if (Result<void> good = check_tool_calls(field + ".tool_calls", part, shape); !good) {
        return tl::unexpected(good.error());
      }
      message[key] = part;
    } else if (key == "reasoning_content" || key == "reasoning") {
      message["reasoning_content"] = part;
    } else if ((key == "name" || key == "tool_call_id") && part.is_string()) {
      message[key] = part;
    } else {
      ignored.push_back("messages." + key);
    }
  }
  return message;
}

}  // namespace

Result<void> check_arguments(const std::string& field, const Json& value, JsonShape& shape) {
  if (value.is_string()) {
    const std::string error = shape.error(value.get_ref<const std::string&>());
    return error.empty() ? Result<void>()
                         : fail(ErrorCode::kInvalidArgument, fmt::format("{}: {}", field, error));
  }
  return value.is_null() || value.is_object() ? Result<void>() : wrong_value(field, "text", value);
}

Result<Json> read_messages(const std::string& field,
                           const Json& value,
                           std::vector<std::string>& ignored) {
  if (!value.is_array() || value.empty()) {
    return wrong_value(field, "a list of one message or more", value);
  }
  Json messages = Json::array();
  JsonShape arguments;
  for (size_t i = 0; i < value.size(); ++i) {
    Result<Json> message =
        read_message(fmt::format("{}[{}]", field, i), value[i], arguments, ignored);
    if (!message) {
      return message;
    }
    messages.push_back(*std::move(message));
  }
  return messages;
}

Result<Json> read_tools(const char* field, const Json& value) {
  if (!value.is_array()) {
    return wrong_value(field, "a list of functions", value);
  }
  for (size_t i = 0; i < value.size(); ++i) {
    const std::string where = fmt::format("{}[{}]", field, i);
    const Json& tool = value[i];
    const Json function = tool.is_object() ? member(tool, "function") : Json();
    if (!function.is_object() || member(tool, "type") != "function") {
      return wrong_value(where, "an object with type \"function\" and function", tool);
    }
    const Json name = member(function, "name");
    if (!name.is_string() || name.get<std::string>().empty()) {
      return wrong_value(where + ".function.name", "text", name);
    }
    const Json parameters = member(function, "parameters");
    if (!parameters.is_null() && !parameters.is_object()) {
      return wrong_value(where + ".function.parameters", "a JSON schema", parameters);
    }
  }
  return value.empty() ? Json() : value;
}

namespace {

// "none", "auto", "required" or {"type": "function", "function": {"name"}}.
Result<void> read_tool_choice(const char* field, const Json& value, ToolOptions& options) {
  using Choice = ToolOptions::Choice;
  if (value == "none") {
    options.choice = Choice::kNone;
  } else if (value == "auto") {
    options.choice = Choice::kAuto;
  } else if (value == "required") {
    options.choice = Choice::kRequired;
  } else {
    const Json function = value.is_object() ? member(value, "function") : Json();
    const Json name = function.is_object() ? member(function, "name") : Json();
    if (!name.is_string()) {
      return wrong_value(field, "none, auto, required or a named function", value);
    }
    options.choice = Choice::kNamed;
    options.name = name.get<std::string>();
  }
  return {};
}

// Checks that the choice fits the tools. Without tools the choice becomes kNone.
Result<void> check_tool_options(ToolOptions& options) {
  using Choice = ToolOptions::Choice;
  const bool forces = options.choice == Choice::kRequired || options.choice == Choice::kNamed;
  if (options.tools.is_null()) {
    if (forces) {
      return fail(ErrorCode::kInvalidArgument, "tool_choice: needs tools, and there are none");
    }
    options.choice = Choice::kNone;
    return {};
  }
  const bool is_known =
      std::any_of(options.tools.begin(), options.tools.end(), [&](const Json& tool) {
        return tool["function"]["name"] == options.name;
      });
  if (options.choice == Choice::kNamed && !is_known) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("tool_choice: no tool is named '{}'", options.name));
  }
  return {};
}

Result<void> read_chat_messages(const char* field, const Json& value, BodyDraft& draft) {
  Result<Json> messages = read_messages(field, value, draft.body.ignored);
  if (!messages) {
    return tl::unexpected(messages.error());
  }
  draft.body.chat.request.messages = *std::move(messages);
  return {};
}

Result<void> read_chat_tools(const char* field, const Json& value, BodyDraft& draft) {
  Result<Json> tools = read_tools(field, value);
  if (!tools) {
    return tl::unexpected(tools.error());
  }
  draft.body.chat.tools.tools = *std::move(tools);
  return {};
}

Result<void> read_choice_of_tool(const char* field, const Json& value, BodyDraft& draft) {
  return read_tool_choice(field, value, draft.body.chat.tools);
}

Result<void> read_parallel(const char* field, const Json& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.chat.tools.parallel);
}

template <auto kMember>
Result<void> of_template(const char* field, const Json& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.chat.request.*kMember);
}
template <auto kMember>
Result<void> of_chat(const char* field, const Json& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.chat.*kMember);
}

// More variables for the chat template. The server's own variables take precedence.
Result<void> read_template_kwargs(const char* field, const Json& value, BodyDraft& draft) {
  if (!value.is_object()) {
    return wrong_value(field, "an object", value);
  }
  for (const auto& [key, variable] : value.items()) {
    draft.body.chat.request.variables[key] = variable;
  }
  return {};
}

Result<void> read_template_variable(const char* field, const Json& value, BodyDraft& draft) {
  draft.body.chat.request.variables[field] = value;
  return {};
}

Result<void> read_own_template(const char* field, const Json& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.chat.request.chat_template.emplace());
}

Result<void> read_documents(const char* field, const Json& value, BodyDraft& draft) {
  if (!value.is_array()) {
    return wrong_value(field, "a list of documents", value);
  }
  draft.body.chat.request.documents = value.empty() ? Json() : value;
  return {};
}

constexpr BodyField kChatFields[] = {
    {"messages", &read_chat_messages},
    {"max_completion_tokens", &of_draft<&BodyDraft::max_completion_tokens>},
    {"logprobs", &of_draft<&BodyDraft::chat_logprobs>},
    {"top_logprobs", &of_draft<&BodyDraft::top_logprobs>},
    {"tools", &read_chat_tools},
    {"tool_choice", &read_choice_of_tool},
    {"parallel_tool_calls", &read_parallel},
    {"include_reasoning", &of_chat<&ChatOptions::include_reasoning>},
    {"thinking_token_budget", &of_chat<&ChatOptions::thinking_token_budget>},
    {"reasoning_effort", &read_template_variable},
    {"chat_template", &read_own_template},
    {"add_generation_prompt", &of_template<&ChatRequest::add_generation_prompt>},
    {"continue_final_message", &of_template<&ChatRequest::continue_final_message>},
    {"chat_template_kwargs", &read_template_kwargs},
    {"documents", &read_documents},
};

Result<void> finish_chat(BodyDraft& draft) {
  ChatOptions& chat = draft.body.chat;
  if (chat.request.messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "messages: missing, must be a list of messages");
  }
  if (chat.request.continue_final_message && chat.request.add_generation_prompt) {
    return fail(ErrorCode::kInvalidArgument,
                "continue_final_message: needs add_generation_prompt to be false");
  }
  if (Result<void> good = check_tool_options(chat.tools); !good) {
    return good;
  }
  if (chat.tools.choice != ToolOptions::Choice::kNone) {
    chat.request.tools = chat.tools.tools;
  }
  SamplingOptions& options = draft.body.sampling;
  if (draft.max_completion_tokens) {
    options.max_tokens = draft.max_completion_tokens;
  }
  if (draft.top_logprobs && !draft.chat_logprobs) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("top_logprobs: {} needs logprobs to be true", *draft.top_logprobs));
  }
  if (draft.chat_logprobs) {
    options.logprobs = draft.top_logprobs.value_or(0);
  }
  return {};
}

}  // namespace

Result<GenerationBody> read_chat_body(const OrderedJson& root, std::string_view text) {
  Result<BodyDraft> draft = read_generation_fields(root, text, kChatFields);
  if (!draft) {
    return tl::unexpected(draft.error());
  }
  if (Result<void> done = finish_chat(*draft); !done) {
    return tl::unexpected(done.error());
  }
  return std::move(draft->body);
}

Result<GenerationBody> parse_chat_body(std::string_view text) {
  return parse_json_object(text).and_then(
      [text](const Json& root) { return read_chat_body(root, text); });
}

}  // namespace warprow
