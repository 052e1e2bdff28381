// SPDX-License-Identifier: Apache-2.0
#include "server/generation_body.h"

#include "server/http_message.h"
#include "server/json_value.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kCompletionMaxTokens = 16;  // OpenAI's and vLLM's default of /v1/completions

// The body, and fields whose meaning depends on other fields.
struct Draft {
  GenerationBody body;
  bool has_structure = false;
  bool has_stream_options = false;
  bool chat_logprobs = false;
  std::optional<int64_t> top_logprobs;
  std::optional<int64_t> max_completion_tokens;
};

using ReadField = Result<void> (*)(const char* field, const Json& value, Draft& draft);

template <auto kMember>
Result<void> sampling(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.sampling.*kMember);
}
template <auto kMember>
Result<void> of_body(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.*kMember);
}
template <auto kMember>
Result<void> of_draft(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.*kMember);
}

Result<void> read_prompt(const char* field, const Json& value, Draft& draft) {
  Result<std::vector<TextOrIds>> prompts = read_prompts(field, value);
  if (!prompts) {
    return tl::unexpected(prompts.error());
  }
  draft.body.prompts = *std::move(prompts);
  return {};
}

Result<void> read_chat_messages(const char* field, const Json& value, Draft& draft) {
  Result<Json> messages = read_messages(field, value, draft.body.ignored);
  if (!messages) {
    return tl::unexpected(messages.error());
  }
  draft.body.chat.request.messages = *std::move(messages);
  return {};
}

Result<void> read_chat_tools(const char* field, const Json& value, Draft& draft) {
  Result<Json> tools = read_tools(field, value);
  if (!tools) {
    return tl::unexpected(tools.error());
  }
  draft.body.chat.tools.tools = *std::move(tools);
  return {};
}

Result<void> read_choice_of_tool(const char* field, const Json& value, Draft& draft) {
  return read_tool_choice(field, value, draft.body.chat.tools);
}

Result<void> read_parallel(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.chat.tools.parallel);
}

template <auto kMember>
Result<void> of_template(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.chat.request.*kMember);
}
template <auto kMember>
Result<void> of_chat(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.chat.*kMember);
}

// More variables for the chat template. The server's own variables take precedence.
Result<void> read_template_kwargs(const char* field, const Json& value, Draft& draft) {
  if (!value.is_object()) {
    return wrong_value(field, "an object", value);
  }
  for (const auto& [key, variable] : value.items()) {
    draft.body.chat.request.variables[key] = variable;
  }
  return {};
}

Result<void> read_template_variable(const char* field, const Json& value, Draft& draft) {
  draft.body.chat.request.variables[field] = value;
  return {};
}

Result<void> read_documents(const char* field, const Json& value, Draft& draft) {
  if (!value.is_array()) {
    return wrong_value(field, "a list of documents", value);
  }
  draft.body.chat.request.documents = value.empty() ? Json() : value;
  return {};
}

Result<void> read_special(const char* field, const Json& value, Draft& draft) {
  return read_value(field, value, draft.body.add_special_tokens.emplace());
}

Result<void> note_structure(const char* /*field*/, const Json& /*value*/, Draft& draft) {
  draft.has_structure = true;
  return {};
}

Result<void> read_stream_options(const char* field, const Json& value, Draft& draft) {
  if (!value.is_object()) {
    return wrong_value(field, "an object", value);
  }
  draft.has_stream_options = true;
  for (const auto& [key, option] : value.items()) {
    if (option.is_null()) {
      continue;
    }
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

Result<void> read_request_id(const char* field, const Json& value, Draft& draft) {
  if (!value.is_string() || !is_plain_id(value.get_ref<const std::string&>())) {
    return wrong_value(field, "1 to 128 visible ASCII characters", value);
  }
  draft.body.request_id = value.get<std::string>();
  return {};
}

Result<void> read_priority(const char* field, const Json& value, Draft& draft) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < INT32_MIN || *number > INT32_MAX) {
    return wrong_value(field, "a whole number of 32 bits", value);
  }
  draft.body.priority = static_cast<int32_t>(*number);
  return {};
}

Result<void> read_truncation(const char* field, const Json& value, Draft& draft) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < -1) {
    return wrong_value(field, "a whole number of -1 or more", value);
  }
  draft.body.truncate_prompt_tokens = number;
  return {};
}

Result<void> read_side(const char* field, const Json& value, Draft& draft) {
  if (value != "left" && value != "right") {
    return wrong_value(field, "left or right", value);
  }
  draft.body.truncates_right = value == "right";
  return {};
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
    {"messages", kChat, &read_chat_messages},
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
    {"prompt_logprobs", kBoth, &sampling<&SamplingOptions::prompt_logprobs>},
    {"logprobs", kCompletions, &sampling<&SamplingOptions::logprobs>},
    {"logprob_token_ids", kBoth, &sampling<&SamplingOptions::logprob_token_ids>},
    {"logprobs", kChat, &of_draft<&Draft::chat_logprobs>},
    {"top_logprobs", kChat, &of_draft<&Draft::top_logprobs>},
    {"priority", kBoth, &read_priority},
    {"cache_salt", kBoth, &of_body<&GenerationBody::cache_salt>},
    {"request_id", kBoth, &read_request_id},
    {"add_special_tokens", kBoth, &read_special},
    {"truncate_prompt_tokens", kBoth, &read_truncation},
    {"truncation_side", kBoth, &read_side},
    {"echo", kBoth, &of_body<&GenerationBody::echo>},
    {"return_token_ids", kBoth, &of_body<&GenerationBody::return_token_ids>},
    {"return_tokens_as_token_ids", kBoth, &of_body<&GenerationBody::return_tokens_as_token_ids>},
    {"structured_outputs", kBoth, &note_structure},
    {"response_format", kBoth, &note_structure},
    {"tools", kChat, &read_chat_tools},
    {"tool_choice", kChat, &read_choice_of_tool},
    {"parallel_tool_calls", kChat, &read_parallel},
    {"include_reasoning", kChat, &of_chat<&ChatOptions::include_reasoning>},
    {"reasoning_effort", kChat, &read_template_variable},
    {"add_generation_prompt", kChat, &of_template<&ChatRequest::add_generation_prompt>},
    {"continue_final_message", kChat, &of_chat<&ChatOptions::continue_final_message>},
    {"chat_template_kwargs", kChat, &read_template_kwargs},
    {"documents", kChat, &read_documents},
};

// Unsupported fields that would change the answer, so they must not be ignored. `harmless` is the value (as JSON) that
// changes nothing; null changes nothing either.
struct UnservedField {
  const char* name;
  const char* harmless;
};

constexpr UnservedField kRefused[] = {
    {"best_of", "1"},
    {"chat_template", "null"},
    {"function_call", R"("none")"},
    {"functions", "[]"},
    {"guided_json_object", "false"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"prompt_embeds", "null"},
    {"suffix", R"("")"},
    {"tool_choice", R"("none")"},
    {"use_beam_search", "false"},
};

// Unsupported fields that clients often send with the value that changes nothing. Any other value is ignored and
// reported like an unknown field.
constexpr UnservedField kIgnored[] = {
    {"kv_transfer_params", "{}"},
    {"length_penalty", "1.0"},
    {"modalities", R"(["text"])"},
    {"spaces_between_special_tokens", "true"},
    {"store", "false"},
    {"vllm_xargs", "{}"},
};

const BodyField* find_field(const std::string& name, unsigned endpoint) {
  for (const BodyField& field : kFields) {
    if (name == field.name && (field.endpoints & endpoint) != 0) {
      return &field;
    }
  }
  return nullptr;
}

template <size_t N>
const UnservedField* find_unserved(const UnservedField (&fields)[N], const std::string& name) {
  const auto* const found = std::find_if(std::begin(fields),
                                         std::end(fields),
                                         [&name](const auto& field) { return name == field.name; });
  return found == std::end(fields) ? nullptr : found;
}

Result<void> read_field(const std::string& name, const Json& value, unsigned endpoint, Draft& out) {
  if (value.is_null()) {  // null counts as absent, for unknown fields too
    return {};
  }
  if (const BodyField* field = find_field(name, endpoint)) {
    return field->read(field->name, value, out);
  }
  if (const UnservedField* field = find_unserved(kRefused, name)) {
    if (value != Json::parse(field->harmless)) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: not supported yet", name));
    }
    return {};
  }
  const UnservedField* ignored = find_unserved(kIgnored, name);
  if (ignored == nullptr || value != Json::parse(ignored->harmless)) {
    out.body.ignored.push_back(name);
  }
  return {};
}

Result<void> finish_completion(Draft& draft) {
  GenerationBody& body = draft.body;
  if (body.prompts.empty()) {
    return fail(ErrorCode::kInvalidArgument, "prompt: missing, must be text or token ids");
  }
  body.sampling.max_tokens = body.sampling.max_tokens.value_or(kCompletionMaxTokens);
  if (body.echo && body.sampling.max_tokens == 0) {  // for the prompt's own logprobs
    body.only_prompt = true;
    body.sampling.max_tokens = 1;
  }
  return {};
}

Result<void> finish_chat(Draft& draft) {
  ChatOptions& chat = draft.body.chat;
  if (chat.request.messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "messages: missing, must be a list of messages");
  }
  if (chat.continue_final_message && chat.request.add_generation_prompt) {
    return fail(ErrorCode::kInvalidArgument,
                "continue_final_message: needs add_generation_prompt to be false");
  }
  if (Result<void> good = check_tool_options(chat.tools); !good) {
    return good;
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

Result<GenerationBody> parse_generation_body(Endpoint endpoint, std::string_view body) {
  const Result<Json> root = parse_json_object(body);
  if (!root) {
    return tl::unexpected(root.error());
  }
  Draft draft;
  const bool is_chat = endpoint != Endpoint::kCompletions;
  for (const auto& [name, value] : root->items()) {
    if (Result<void> read = read_field(name, value, is_chat ? kChat : kCompletions, draft); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (draft.has_stream_options && !draft.body.stream) {
    return fail(ErrorCode::kInvalidArgument, "stream_options: allowed only with stream true");
  }
  if (draft.has_structure) {
    // Read from the body's text: the model must write a schema's properties in the order of that text.
    Result<std::optional<StructuredOutput>> structured = read_structured_output(body);
    if (!structured) {
      return tl::unexpected(structured.error());
    }
    draft.body.sampling.structured_output = *std::move(structured);
  }
  if (draft.body.stream && draft.body.sampling.prompt_logprobs) {
    return fail(ErrorCode::kInvalidArgument, "prompt_logprobs: allowed only with stream false");
  }
  if (Result<void> done = is_chat ? finish_chat(draft) : finish_completion(draft); !done) {
    return tl::unexpected(done.error());
  }
  return std::move(draft.body);
}

}  // namespace warprow
