// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/generation_body.h"

#include "server/http_message.h"
#include "server/json_value.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = OrderedJson;

Result<void> read_special(const char* field, const Json& value, BodyDraft& draft) {
  return read_value(field, value, draft.body.add_special_tokens.emplace());
}

Result<void> note_structure(const char* /*field*/, const Json& /*value*/, BodyDraft& draft) {
  draft.has_structure = true;
  return {};
}

Result<void> read_stream_options(const char* field, const Json& value, BodyDraft& draft) {
  if (!value.is_object()) {
    return wrong_value(field, "an object", value);
  }
  draft.has_stream_options = true;
  for (const auto& [key, option] : value.items()) {
    if (option.is_null()) {
      continue;
    }
    const std::string name = "stream_options." + key;
    bool* const wanted = key == "include_usage"            ? &draft.body.include_usage
                         : key == "continuous_usage_stats" ? &draft.body.continuous_usage
                                                           : nullptr;
    if (wanted != nullptr) {
      if (Result<void> read = read_value(name.c_str(), option, *wanted); !read) {
        return read;
      }
    } else if (option != false) {
      draft.body.ignored.push_back(name);
    }
  }
  return {};
}

Result<void> read_request_id(const char* field, const Json& value, BodyDraft& draft) {
  if (!value.is_string() || !is_plain_id(value.get_ref<const std::string&>())) {
    return wrong_value(field, "1 to 128 visible ASCII characters", value);
  }
  draft.body.request_id = value.get<std::string>();
  return {};
}

Result<void> read_priority(const char* field, const Json& value, BodyDraft& draft) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < INT32_MIN || *number > INT32_MAX) {
    return wrong_value(field, "a whole number of 32 bits", value);
  }
  draft.body.priority = static_cast<int32_t>(*number);
  return {};
}

Result<void> read_truncation(const char* field, const Json& value, BodyDraft& draft) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < -1) {
    return wrong_value(field, "a whole number of -1 or more", value);
  }
  draft.body.truncate_prompt_tokens = number;
  return {};
}

Result<void> read_side(const char* field, const Json& value, BodyDraft& draft) {
  if (value != "left" && value != "right") {
    return wrong_value(field, "left or right", value);
  }
  draft.body.truncates_right = value == "right";
  return {};
}

constexpr BodyField kSharedFields[] = {
    {"model", &of_body<&GenerationBody::model>},
    {"stream", &of_body<&GenerationBody::stream>},
    {"stream_options", &read_stream_options},
    {"n", &sampling<&SamplingOptions::n>},
    {"max_tokens", &sampling<&SamplingOptions::max_tokens>},
    {"min_tokens", &sampling<&SamplingOptions::min_tokens>},
    {"temperature", &sampling<&SamplingOptions::temperature>},
    {"top_p", &sampling<&SamplingOptions::top_p>},
    {"top_k", &sampling<&SamplingOptions::top_k>},
    {"min_p", &sampling<&SamplingOptions::min_p>},
    {"seed", &sampling<&SamplingOptions::seed>},
    {"repetition_penalty", &sampling<&SamplingOptions::repetition_penalty>},
    {"frequency_penalty", &sampling<&SamplingOptions::frequency_penalty>},
    {"presence_penalty", &sampling<&SamplingOptions::presence_penalty>},
    {"stop", &sampling<&SamplingOptions::stop>},
    {"stop_token_ids", &sampling<&SamplingOptions::stop_token_ids>},
    {"allowed_token_ids", &sampling<&SamplingOptions::allowed_token_ids>},
    {"bad_words", &sampling<&SamplingOptions::bad_words>},
    {"logit_bias", &sampling<&SamplingOptions::logit_bias>},
    {"ignore_eos", &sampling<&SamplingOptions::ignore_eos>},
    {"include_stop_str_in_output", &sampling<&SamplingOptions::include_stop_str_in_output>},
    {"skip_special_tokens", &sampling<&SamplingOptions::skip_special_tokens>},
    {"speculate", &sampling<&SamplingOptions::speculate>},
    {"spaces_between_special_tokens", &sampling<&SamplingOptions::spaces_between_special_tokens>},
    {"prompt_logprobs", &sampling<&SamplingOptions::prompt_logprobs>},
    {"logprob_token_ids", &sampling<&SamplingOptions::logprob_token_ids>},
    {"priority", &read_priority},
    {"cache_salt", &of_body<&GenerationBody::cache_salt>},
    {"request_id", &read_request_id},
    {"add_special_tokens", &read_special},
    {"truncate_prompt_tokens", &read_truncation},
    {"truncation_side", &read_side},
    {"echo", &of_body<&GenerationBody::echo>},
    {"return_token_ids", &of_body<&GenerationBody::return_token_ids>},
    {"return_tokens_as_token_ids", &of_body<&GenerationBody::return_tokens_as_token_ids>},
    {"structured_outputs", &note_structure},
    {"response_format", &note_structure},
};

// Unsupported fields that would change the answer, so they must not be ignored. `harmless` is the value (as JSON) that
// changes nothing; null changes nothing either.
struct UnservedField {
  const char* name;
  const char* harmless;
};

constexpr UnservedField kUnserved[] = {
    {"best_of", "1"},
    {"chat_template", "null"},
    {"function_call", R"("none")"},
    {"functions", "[]"},
    {"guided_json_object", "false"},
    {"guided_choice", "null"},
    {"guided_grammar", "null"},
    {"guided_json", "null"},
    {"guided_regex", "null"},
    {"prompt_embeds", "null"},  // completions have it
    {"suffix", R"("")"},
    {"thinking_token_budget", "-1"},
    {"tool_choice", R"("none")"},
    {"use_beam_search", "false"},
};

// Unsupported fields that clients often send with the value that changes nothing. Any other value is ignored and
// reported like an unknown field.
constexpr UnservedField kIgnored[] = {
    {"kv_transfer_params", "{}"},
    {"length_penalty", "1.0"},
    {"modalities", R"(["text"])"},
    {"store", "false"},
    {"vllm_xargs", "{}"},
};

const BodyField* find_field(std::span<const BodyField> fields, const std::string& name) {
  const auto found = std::find_if(
      fields.begin(), fields.end(), [&name](const auto& field) { return name == field.name; });
  return found == fields.end() ? nullptr : &*found;
}

template <size_t N>
const UnservedField* find_unserved(const UnservedField (&fields)[N], const std::string& name) {
  const auto* const found = std::find_if(std::begin(fields),
                                         std::end(fields),
                                         [&name](const auto& field) { return name == field.name; });
  return found == std::end(fields) ? nullptr : found;
}

Result<void> read_generation_field(const std::string& name,
                                   const Json& value,
                                   std::span<const BodyField> own,
                                   BodyDraft& out) {
  if (value.is_null()) {  // null counts as absent, for unknown fields too
    return {};
  }
  for (const std::span<const BodyField> fields : {own, std::span<const BodyField>(kSharedFields)}) {
    if (const BodyField* field = find_field(fields, name)) {
      return field->read(field->name, value, out);
    }
  }
  if (const UnservedField* field = find_unserved(kUnserved, name)) {
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

}  // namespace

Result<BodyDraft> read_generation_fields(const OrderedJson& root,
                                         std::string_view text,
                                         std::span<const BodyField> own) {
  BodyDraft draft;
  for (const auto& [name, value] : root.items()) {
    if (Result<void> read = read_generation_field(name, value, own, draft); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (draft.has_stream_options && !draft.body.stream) {
    return fail(ErrorCode::kInvalidArgument, "stream_options: allowed only with stream true");
  }
  if (draft.has_structure) {
    // Read from the body's text: the model must write a schema's properties in the order of that text.
    Result<std::optional<StructuredOutput>> structured =
        text.empty() ? read_structured_output(root.dump()) : read_structured_output(text);
    if (!structured) {
      return tl::unexpected(structured.error());
    }
    draft.body.sampling.structured_output = *std::move(structured);
  }
  if (draft.body.stream && draft.body.sampling.prompt_logprobs) {
    return fail(ErrorCode::kInvalidArgument, "prompt_logprobs: allowed only with stream false");
  }
  return draft;
}

}  // namespace warprow
