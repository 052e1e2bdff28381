// SPDX-License-Identifier: Apache-2.0
// /tokenize and /detokenize. They use the tokenizer and no engine request.
#include "server/endpoints/chat_body.h"
#include "server/endpoints/endpoints.h"
#include "server/endpoints/generate.h"
#include "server/json_value.h"
#include "server/response/answer_json.h"
#include "server/response/api_error.h"
#include "text/text_model.h"

#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = OrderedJson;

struct TokenizeBody {
  std::optional<std::string> text;  // nullopt: the body is a chat
  ChatRequest chat;
  std::optional<bool> add_special_tokens;
  bool with_texts = false;
  std::string model;
  std::vector<std::string> ignored;
};

// The fields have vLLM's names; llama.cpp's `content`, `add_special` and `with_pieces` work too.
Result<void> read_tokenize_field(const std::string& name, const Json& value, TokenizeBody& out) {
  const char* field = name.c_str();
  if (name == "prompt" || name == "content") {
    return read_value(field, value, out.text.emplace());
  }
  if (name == "messages") {
    Result<Json> messages = read_messages(name, value, out.ignored);
    return messages.map([&](Json& list) { out.chat.messages = std::move(list); });
  }
  if (name == "tools") {
    return read_tools(field, value).map([&](Json list) { out.chat.tools = std::move(list); });
  }
  if (name == "chat_template_kwargs") {
    if (!value.is_object()) {
      return wrong_value(name, "an object", value);
    }
    out.chat.variables = value;
    return {};
  }
  if (name == "add_special_tokens" || name == "add_special") {
    return read_value(field, value, out.add_special_tokens.emplace());
  }
  if (name == "add_generation_prompt") {
    return read_value(field, value, out.chat.add_generation_prompt);
  }
  if (name == "continue_final_message") {
    return read_value(field, value, out.chat.continue_final_message);
  }
  if (name == "return_token_strs" || name == "with_pieces") {
    return read_value(field, value, out.with_texts);
  }
  if (name == "model") {
    return read_value(field, value, out.model);
  }
  if (name == "chat_template") {
    return read_value(field, value, out.chat.chat_template.emplace());
  }
  out.ignored.push_back(name);
  return {};
}

Result<TokenizeBody> parse_tokenize_body(const std::string& text) {
  const Result<Json> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  TokenizeBody out;
  for (const auto& [name, value] : root->items()) {
    if (value.is_null()) {
      continue;
    }
    if (Result<void> read = read_tokenize_field(name, value, out); !read) {
      return tl::unexpected(read.error());
    }
  }
  if (!out.text && out.chat.messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "prompt: missing, must be text; or messages");
  }
  return out;
}

struct DetokenizeBody {
  std::vector<TokenId> tokens;
  std::string model;
  std::vector<std::string> ignored;
};

Result<DetokenizeBody> parse_detokenize_body(const std::string& text) {
  const Result<Json> root = parse_json_object(text);
  if (!root) {
    return tl::unexpected(root.error());
  }
  if (!root->contains("tokens")) {
    return fail(ErrorCode::kInvalidArgument, "tokens: missing, must be a list of token ids");
  }
  DetokenizeBody out;
  for (const auto& [name, value] : root->items()) {
    if (name == "tokens") {
      Result<std::vector<TokenId>> ids = read_token_ids("tokens", value);
      if (!ids) {
        return tl::unexpected(ids.error());
      }
      out.tokens = *std::move(ids);
    } else if (name == "model" && !value.is_null()) {
      if (Result<void> read = read_value("model", value, out.model); !read) {
        return tl::unexpected(read.error());
      }
    } else if (!value.is_null()) {
      out.ignored.push_back(name);
    }
  }
  return out;
}

}  // namespace

ApiAnswer answer_tokenize(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<TokenizeBody> body = parse_tokenize_body(request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return error_reply(headers.error());
  }
  const Tokenizer& tokenizer = served.engine.text().tokenizer;
  const Result<std::string> text =
      body->text ? Result<std::string>(*body->text) : render_chat_of(served, body->chat);
  if (!text) {
    return error_reply(api_error(text.error()));
  }
  if (const std::optional<ApiError> error =
          served.encoder.length_error(*text, body->text ? "prompt" : "messages")) {
    return error_reply(*error);
  }
  const std::vector<TokenId> ids =
      tokenizer.encode(*text, body->add_special_tokens.value_or(body->text.has_value()));
  Json out;
  out["count"] = ids.size();
  out["max_model_len"] = served.engine.model_facts().max_model_len;
  out["tokens"] = ids;
  out["token_strs"] = nullptr;
  if (body->with_texts) {
    Json texts = Json::array();
    for (const TokenId id : ids) {
      texts.push_back(tokenizer.token_text(id));
    }
    out["token_strs"] = std::move(texts);
  }
  return HttpReply{.body = json_text(out), .headers = *std::move(headers)};
}

ApiAnswer answer_detokenize(Served& served, const HttpRequest& request, const Wake& /*wake*/) {
  const Result<DetokenizeBody> body = parse_detokenize_body(request.body);
  if (!body) {
    return error_reply(api_error(body.error()));
  }
  tl::expected<HttpHeaders, ApiError> headers = served.names.check(body->model, body->ignored);
  if (!headers) {
    return error_reply(headers.error());
  }
  const int32_t vocab_size = served.engine.text().tokenizer.vocab_size();
  for (const TokenId id : body->tokens) {
    if (id >= vocab_size) {
      return error_reply(
          {400,
           "invalid_request_error",
           fmt::format("tokens: {} is outside the vocabulary [0, {}]", id, vocab_size - 1),
           "tokens"});
    }
  }
  const std::string text = served.engine.text().tokenizer.decode(body->tokens, false);
  Json out;
  out["prompt"] = text;
  out["content"] = text;  // llama.cpp's name
  return HttpReply{.body = json_text(out), .headers = *std::move(headers)};
}

// Fields are those of a tokenizer_config.json, as far as the model has them.
ApiAnswer answer_tokenizer_info(Served& served,
                                const HttpRequest& /*request*/,
                                const Wake& /*wake*/) {
  const TextModel& text = served.engine.text();
  Json added = Json::object();
  for (TokenId id = 0; id < text.tokenizer.vocab_size(); ++id) {
    if (text.tokenizer.is_special(id)) {
      added[std::to_string(id)] = {{"content", text.tokenizer.token_text(id)}, {"special", true}};
    }
  }
  Json out;
  out["tokenizer_class"] = text.info.tokenizer_class;
  out["vocab_size"] = text.tokenizer.vocab_size();
  out["model_max_length"] = served.engine.model_facts().max_model_len;
  for (const auto& [name, token] : text.info.special_tokens) {
    out[name] = token;
  }
  out["eos_token_ids"] = text.eos;
  out["added_tokens_decoder"] = std::move(added);
  out["chat_template"] = text.info.chat_template.empty() ? Json() : Json(text.info.chat_template);
  return HttpReply{.body = json_text(out)};
}

}  // namespace warprow
