// SPDX-License-Identifier: Apache-2.0
#include "server/generation_body.h"

#include "server/json_value.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::json;

constexpr int64_t kCompletionMaxTokens = 16;  // OpenAI's and vLLM's default of /v1/completions

// The body and what is decided only once all fields are read.
struct Draft {
  GenerationBody body;
  bool has_prompt = false;
  bool has_stream_options = false;
  bool chat_logprobs = false;
  std::optional<int64_t> top_logprobs;
  std::optional<int64_t> max_completion_tokens;
};

using ReadField = Result<void> (*)(const char* field, const Json& value, Draft& draft);

template <auto kMember>
Result<void> sampling(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.request.sampling.*kMember);
}
template <auto kMember>
Result<void> of_body(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.*kMember);
}
template <auto kMember>
Result<void> of_draft(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.*kMember);
}

// Text, token ids, or a list with one of either.
Result<void> read_prompt(const char* field, const Json& value, Draft& draft) {
  const bool is_list_of_prompts =
      value.is_array() && !value.empty() && (value[0].is_string() || value[0].is_array());
  if (is_list_of_prompts && value.size() > 1) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format(
            "{}: {} prompts in one request are not supported yet, must be 1", field, value.size()));
  }
  const Json& prompt = is_list_of_prompts ? value[0] : value;
  draft.has_prompt = true;
  if (prompt.is_string()) {
    draft.body.request.prompt = prompt.get<std::string>();
    return {};
  }
  constexpr const char* kWanted = "text or a list of token ids";
  std::vector<int64_t> numbers;
  if (!read_value(field, prompt, numbers)) {
    return wrong_value(field, kWanted, value);
  }
  std::vector<TokenId> ids;
  for (const int64_t number : numbers) {
    if (number < 0 || number > std::numeric_limits<TokenId>::max()) {
      return wrong_value(field, kWanted, value);
    }
    ids.push_back(static_cast<TokenId>(number));
  }
  draft.body.request.prompt = std::move(ids);
  return {};
}

// Text, or parts of text, which are joined by line ends.
Result<std::string> read_content(const std::string& field, const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (!value.is_array()) {
    return wrong_value(field, "text or a list of text parts", value);
  }
  std::string joined;
  for (size_t i = 0; i < value.size(); ++i) {
    const Json& part = value[i];
    const bool is_text = part.is_object() && part.contains("type") && part["type"] == "text" &&
                         part.contains("text") && part["text"].is_string();
    if (!is_text) {
      return wrong_value(fmt::format("{}[{}]", field, i), "a part of type text", part);
    }
    joined += (i == 0 ? "" : "\n") + part["text"].get<std::string>();
  }
  return joined;
}

Result<ChatMessage> read_message(const std::string& field,
                                 const Json& value,
                                 std::vector<std::string>& ignored) {
  if (!value.is_object()) {
    return wrong_value(field, "an object with role and content", value);
  }
  ChatMessage message;
  const Json missing;
  const auto member = [&](const char* name) -> const Json& {
    return value.contains(name) ? value[name] : missing;
  };
  if (Result<void> role = read_value((field + ".role").c_str(), member("role"), message.role);
      !role) {
    return tl::unexpected(role.error());
  }
  Result<std::string> content = read_content(field + ".content", member("content"));
  if (!content) {
    return tl::unexpected(content.error());
  }
  message.content = *std::move(content);
  for (const auto& [key, unused] : value.items()) {
    if (key == "tool_calls" || key == "tool_call_id") {
      return fail(ErrorCode::kUnsupported, fmt::format("{}.{}: not supported yet", field, key));
    }
    if (key != "role" && key != "content") {
      ignored.push_back("messages." + key);
    }
  }
  return message;
}

Result<void> read_messages(const char* field, const Json& value, Draft& draft) {
  if (!value.is_array() || value.empty()) {
    return wrong_value(field, "a list of one message or more", value);
  }
  std::vector<ChatMessage> messages;
  for (size_t i = 0; i < value.size(); ++i) {
    Result<ChatMessage> message =
        read_message(fmt::format("{}[{}]", field, i), value[i], draft.body.ignored);
    if (!message) {
      return tl::unexpected(message.error());
    }
    messages.push_back(*std::move(message));
  }
  draft.has_prompt = true;
  draft.body.request.prompt = std::move(messages);
  return {};
}

Result<void> read_stream_options(const char* field, const Json& value, Draft& draft) {
  if (!value.is_object()) {
    return wrong_value(field, "an object", value);
  }
  draft.has_stream_options = true;
  for (const auto& [key, option] : value.items()) {
    if (key == "include_usage") {
      if (Result<void> read =
              read_value("stream_options.include_usage", option, draft.body.include_usage);
          !read) {
        return read;
      }
    } else if (option != false) {
      draft.body.ignored.push_back("stream_options." + key);
    }
  }
  return {};
}

Result<void> read_priority(const char* field, const Json& value, Draft& draft) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < INT32_MIN || *number > INT32_MAX) {
    return wrong_value(field, "a whole number of 32 bits", value);
  }
  draft.body.request.priority = static_cast<int32_t>(*number);
  return {};
}

Result<void> read_cache_salt(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.request.cache_salt);
}

constexpr unsigned kCompletions = 1;
constexpr unsigned kChat = 2;
constexpr unsigned kBoth = kCompletions | kChat;

struct BodyField {
  const char* name;
  unsigned endpoints;
  ReadField read;
};

constexpr BodyField kFields[] = {
    {"model", kBoth, &of_body<&GenerationBody::model>},
    {"prompt", kCompletions, &read_prompt},
    {"messages", kChat, &read_messages},
    {"stream", kBoth, &of_body<&GenerationBody::stream>},
    {"stream_options", kBoth, &read_stream_options},
    {"n", kBoth, &sampling<&SamplingOptions::n>},
    {"max_tokens", kBoth, &sampling<&SamplingOptions::max_tokens>},
    {"max_completion_tokens", kChat, &of_draft<&Draft::max_completion_tokens>},
    {"min_tokens", kBoth, &sampling<&SamplingOptions::min_tokens>},
    {"temperature", kBoth, &sampling<&SamplingOptions::temperature>},
    {"top_p", kBoth, &sampling<&SamplingOptions::top_p>},
    {"top_k", kBoth, &sampling<&SamplingOptions::top_k>},
    {"min_p", kBoth, &sampling<&SamplingOptions::min_p>},
    {"seed", kBoth, &sampling<&SamplingOptions::seed>},
    {"repetition_penalty", kBoth, &sampling<&SamplingOptions::repetition_penalty>},
    {"frequency_penalty", kBoth, &sampling<&SamplingOptions::frequency_penalty>},
    {"presence_penalty", kBoth, &sampling<&SamplingOptions::presence_penalty>},
    {"stop", kBoth, &sampling<&SamplingOptions::stop>},
    {"stop_token_ids", kBoth, &sampling<&SamplingOptions::stop_token_ids>},
    {"allowed_token_ids", kBoth, &sampling<&SamplingOptions::allowed_token_ids>},
    {"bad_words", kBoth, &sampling<&SamplingOptions::bad_words>},
    {"logit_bias", kBoth, &sampling<&SamplingOptions::logit_bias>},
    {"ignore_eos", kBoth, &sampling<&SamplingOptions::ignore_eos>},
    {"include_stop_str_in_output", kBoth, &sampling<&SamplingOptions::include_stop_str_in_output>},
    {"skip_special_tokens", kBoth, &sampling<&SamplingOptions::skip_special_tokens>},
    {"logprobs", kCompletions, &sampling<&SamplingOptions::logprobs>},
    {"logprobs", kChat, &of_draft<&Draft::chat_logprobs>},
    {"top_logprobs", kChat, &of_draft<&Draft::top_logprobs>},
    {"priority", kBoth, &read_priority},
    {"cache_salt", kBoth, &read_cache_salt},
};

// Fields that would change the answer, so that ignoring them would be a lie, with the value (as JSON)
// that changes nothing; null never does.
struct RefusedField {
  const char* name;
  const char* harmless;
};

constexpr RefusedField kRefused[] = {
    {"add_generation_prompt", "true"},
    {"add_special_tokens", "null"},
    {"best_of", "1"},
    {"chat_template", "null"},
    {"chat_template_kwargs", "{}"},
    {"continue_final_message", "false"},
    {"documents", "[]"},
    {"echo", "false"},
    {"functions", "[]"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"prompt_embeds", "null"},
    {"prompt_logprobs", "null"},
    {"response_format", R"({"type":"text"})"},
    {"structured_outputs", "null"},
    {"suffix", R"("")"},
    {"tool_choice", R"("none")"},
    {"tools", "[]"},
    {"truncate_prompt_tokens", "null"},
    {"use_beam_search", "false"},
};

const BodyField* find_field(const std::string& name, unsigned endpoint) {
  for (const BodyField& field : kFields) {
    if (name == field.name && (field.endpoints & endpoint) != 0) {
      return &field;
    }
  }
  return nullptr;
}

const RefusedField* find_refused(const std::string& name) {
  for (const RefusedField& field : kRefused) {
    if (name == field.name) {
      return &field;
    }
  }
  return nullptr;
}

Result<void> read_field(const std::string& name, const Json& value, unsigned endpoint, Draft& out) {
  if (const BodyField* field = find_field(name, endpoint)) {
    return value.is_null() ? Result<void>() : field->read(field->name, value, out);
  }
  if (const RefusedField* field = find_refused(name)) {
    if (!value.is_null() && value != Json::parse(field->harmless)) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: not supported yet", name));
    }
    return {};
  }
  out.body.ignored.push_back(name);
  return {};
}

Result<void> finish_completion(Draft& draft) {
  if (!draft.has_prompt) {
    return fail(ErrorCode::kInvalidArgument, "prompt: missing, must be text or token ids");
  }
  SamplingOptions& options = draft.body.request.sampling;
  options.max_tokens = options.max_tokens.value_or(kCompletionMaxTokens);
  return {};
}

Result<void> finish_chat(Draft& draft) {
  if (!draft.has_prompt) {
    return fail(ErrorCode::kInvalidArgument, "messages: missing, must be a list of messages");
  }
  SamplingOptions& options = draft.body.request.sampling;
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

Result<GenerationBody> parse_generation_body(Endpoint endpoint, std::string_view body) {
  const Result<Json> root = parse_json_object(body);
  if (!root) {
    return tl::unexpected(root.error());
  }
  Draft draft;
  const bool is_chat = endpoint == Endpoint::kChat;
  for (const auto& [name, value] : root->items()) {
    if (Result<void> read = read_field(name, value, is_chat ? kChat : kCompletions, draft); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (draft.has_stream_options && !draft.body.stream) {
    return fail(ErrorCode::kInvalidArgument, "stream_options: allowed only with stream true");
  }
  if (Result<void> done = is_chat ? finish_chat(draft) : finish_completion(draft); !done) {
    return tl::unexpected(done.error());
  }
  return std::move(draft.body);
}

}  // namespace warprow
