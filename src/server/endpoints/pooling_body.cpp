// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/pooling_body.h"

#include "server/endpoints/completions_body.h"
#include "server/http_message.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = OrderedJson;

template <auto kMember>
Result<void> of_body(const char* field, const Json& value, PoolingBody& body) {
  return read_value(field, value, body.*kMember);
}
template <auto kMember>
Result<void> of_request(const char* field, const Json& value, PoolingBody& body) {
  return read_value(field, value, body.request.*kMember);
}
template <auto kMember>
Result<void> switch_of_body(const char* field, const Json& value, PoolingBody& body) {
  return read_value(field, value, (body.*kMember).emplace());
}
template <auto kMember>
Result<void> switch_of_request(const char* field, const Json& value, PoolingBody& body) {
  return read_value(field, value, (body.request.*kMember).emplace());
}

Result<void> read_input(const char* field, const Json& value, PoolingBody& body) {
  return read_prompts(field, value, kMaxPooledInputs).map([&](std::vector<TextOrIds> inputs) {
    body.inputs = std::move(inputs);
  });
}

Result<void> read_format(const char* field, const Json& value, PoolingBody& body) {
  if (value != "float" && value != "base64") {
    return wrong_value(field, "float or base64", value);
  }
  body.base64 = value == "base64";
  return {};
}

Result<void> read_pooling_truncation(const char* field, const Json& value, PoolingBody& body) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < -1 || *number == 0) {
    return wrong_value(field, "-1 or a whole number of 1 or more", value);
  }
  body.truncate_prompt_tokens = number;
  return {};
}

Result<void> read_pooling_side(const char* field, const Json& value, PoolingBody& body) {
  if (value != "left" && value != "right") {
    return wrong_value(field, "left or right", value);
  }
  body.truncates_left = value == "left";
  return {};
}

Result<void> read_pooling_priority(const char* field, const Json& value, PoolingBody& body) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < std::numeric_limits<int32_t>::min() ||
      *number > std::numeric_limits<int32_t>::max()) {
    return wrong_value(field, "a whole number of 32 bits", value);
  }
  body.request.priority = static_cast<int32_t>(*number);
  return {};
}

Result<void> read_pooling_request_id(const char* field, const Json& value, PoolingBody& body) {
  if (!value.is_string() || !is_plain_id(value.get_ref<const std::string&>())) {
    return wrong_value(field, "1 to 128 visible ASCII characters", value);
  }
  body.request_id = value.get<std::string>();
  return {};
}

Result<void> read_task(const char* field, const Json& value, PoolingBody& body) {
  if (value != "embed" && value != "classify" && value != "token_embed" &&
      value != "token_classify") {
    return wrong_value(field, "embed, classify, token_embed or token_classify", value);
  }
  const auto& task = value.get_ref<const std::string&>();
  body.request.of_tokens = task.starts_with("token_");
  body.request.task = task.ends_with("embed") ? PoolingTask::kEmbed : PoolingTask::kClassify;
  return {};
}

constexpr PoolingField kSharedByPooling[] = {
    {"model", &of_body<&PoolingBody::model>},
    {"priority", &read_pooling_priority},
    {"request_id", &read_pooling_request_id},
    {"cache_salt", &of_request<&PoolingRequest::cache_salt>},
    {"truncate_prompt_tokens", &read_pooling_truncation},
    {"truncation_side", &read_pooling_side},
};

constexpr PoolingField kInput[] = {
    {"input", &read_input},
    {"add_special_tokens", &switch_of_body<&PoolingBody::add_special_tokens>},
};

constexpr PoolingField kEmbeddings[] = {
    {"dimensions", &of_request<&PoolingRequest::dimensions>},
    {"normalize", &switch_of_request<&PoolingRequest::normalize>},
    {"encoding_format", &read_format},
};

constexpr PoolingField kClasses[] = {
    {"use_activation", &switch_of_request<&PoolingRequest::activation>},
};

constexpr PoolingField kTask[] = {
    {"task", &read_task},
};

// A text or a list of them, or Cohere's objects with a text.
Result<void> read_texts(const char* field, const Json& value, std::vector<std::string>& texts) {
  if (value.is_array() && value.size() > kMaxPooledInputs) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} texts in one request, must be {} or less",
                            field,
                            value.size(),
                            kMaxPooledInputs));
  }
  for (const Json& entry : value.is_array() ? value : Json::array({value})) {
    const Json text = entry.is_object() ? member_of(entry, "text") : entry;
    if (!text.is_string()) {
      return wrong_value(field, "text or a list of texts", value);
    }
    texts.push_back(text.get<std::string>());
  }
  return {};
}

template <auto kMember>
Result<void> texts_of_body(const char* field, const Json& value, PoolingBody& body) {
  (body.*kMember).clear();
  return read_texts(field, value, body.*kMember);
}

Result<void> read_query(const char* field, const Json& value, PoolingBody& body) {
  return read_value(field, value, body.queries.emplace_back());
}

Result<void> read_top_n(const char* field, const Json& value, PoolingBody& body) {
  const std::optional<int64_t> number = whole_number(value);
  if (!number || *number < 0) {
    return wrong_value(field, "a whole number of 0 or more", value);
  }
  body.top_n = number;
  return {};
}

constexpr PoolingField kScore[] = {
    {"text_1", &texts_of_body<&PoolingBody::queries>},
    {"text_2", &texts_of_body<&PoolingBody::documents>},
    {"queries", &texts_of_body<&PoolingBody::queries>},
    {"documents", &texts_of_body<&PoolingBody::documents>},
    {"instruction", &of_body<&PoolingBody::instruction>},
};

constexpr PoolingField kRerank[] = {
    {"query", &read_query},
    {"documents", &texts_of_body<&PoolingBody::documents>},
    {"top_n", &read_top_n},
    {"return_documents", &of_body<&PoolingBody::return_documents>},
    {"instruction", &of_body<&PoolingBody::instruction>},
};

// Known fields that would change the answer and are not implemented.
constexpr const char* kChatFieldNames[] = {"messages", "chat_template", "mm_processor_kwargs"};

using Fields = std::span<const PoolingField>;

const PoolingField* find_pooling_field(std::span<const Fields> tables, std::string_view name) {
  for (const Fields& fields : tables) {
    const auto found = std::ranges::find(fields, name, &PoolingField::name);
    if (found != fields.end()) {
      return &*found;
    }
  }
  return nullptr;
}

Result<PoolingBody> read_fields(std::string_view text, std::initializer_list<Fields> own) {
  const Result<Json> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  std::vector<Fields> tables(own);
  tables.emplace_back(kSharedByPooling);
  PoolingBody body;
  for (const auto& [name, value] : root->items()) {
    if (value.is_null()) {
      continue;
    }
    const PoolingField* field = find_pooling_field(tables, name);
    if (field == nullptr && std::ranges::find(kChatFieldNames, name) != std::end(kChatFieldNames)) {
      return fail(ErrorCode::kUnsupported, fmt::format("{}: not supported here", name));
    }
    if (field == nullptr) {
      body.ignored.push_back(name);
      continue;
    }
    if (Result<void> read = field->read(field->name, value, body); !read) {
      return tl::unexpected(read.error());
    }
  }
  return body;
}

Result<PoolingBody> with_task(Result<PoolingBody> body, PoolingTask task) {
  if (body) {
    body->request.task = task;
  }
  return body;
}

Result<PoolingBody> with_input(Result<PoolingBody> body) {
  if (body && body->inputs.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                "input: missing, must be text, token ids, or a list of either kind");
  }
  return body;
}

}  // namespace

Result<PoolingBody> parse_embeddings_body(std::string_view text) {
  return with_task(with_input(read_fields(text, {kInput, kEmbeddings})), PoolingTask::kEmbed);
}

Result<PoolingBody> parse_pooling_body(std::string_view text) {
  return with_input(read_fields(text, {kInput, kEmbeddings, kClasses, kTask}));
}

Result<PoolingBody> parse_classify_body(std::string_view text) {
  return with_task(with_input(read_fields(text, {kInput, kClasses})), PoolingTask::kClassify);
}

Result<PoolingBody> parse_score_body(std::string_view text) {
  Result<PoolingBody> body = read_fields(text, {kScore, kClasses});
  if (!body) {
    return body;
  }
  if (body->queries.empty() || body->documents.empty()) {
    return fail(ErrorCode::kInvalidArgument,
                body->queries.empty() ? "text_1: missing, must be text or a list of texts"
                                      : "text_2: missing, must be text or a list of texts");
  }
  if (body->queries.size() != 1 && body->queries.size() != body->documents.size()) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("text_1: {} texts for {} of text_2, must be 1 or as many",
                            body->queries.size(),
                            body->documents.size()));
  }
  return body;
}

Result<PoolingBody> parse_rerank_body(std::string_view text) {
  Result<PoolingBody> body = read_fields(text, {kRerank, kClasses});
  if (body && (body->queries.empty() || body->documents.empty())) {
    return fail(ErrorCode::kInvalidArgument,
                body->queries.empty() ? "query: missing, must be text"
                                      : "documents: missing, must be a list of one text or more");
  }
  return body;
}

}  // namespace warprow
