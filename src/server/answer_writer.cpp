// SPDX-License-Identifier: Apache-2.0
#include "server/answer_writer.h"

#include "server/logprobs_json.h"

#include <utility>
#include <variant>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string event(std::string_view data) { return "data: " + std::string(data) + "\n\n"; }

Json finish_reason(const RequestUpdate& update) {
  return update.finish_reason == FinishReason::kNone
             ? Json(nullptr)
             : Json(finish_reason_name(update.finish_reason));
}

Json stop_reason(const RequestUpdate& update) {
  if (const auto* id = std::get_if<int64_t>(&update.stop_reason)) {
    return *id;
  }
  if (const auto* text = std::get_if<std::string>(&update.stop_reason)) {
    return *text;
  }
  return nullptr;
}

Json usage(std::span<const RequestUpdate> choices) {
  int64_t num_output = 0;
  for (const RequestUpdate& choice : choices) {
    num_output += choice.num_output_tokens;
  }
  const RequestUpdate& first = choices.front();
  Json out;
  out["prompt_tokens"] = first.num_prompt_tokens;
  out["completion_tokens"] = num_output;
  out["total_tokens"] = first.num_prompt_tokens + num_output;
  out["prompt_tokens_details"]["cached_tokens"] = first.num_cached_tokens;
  return out;
}

// What both endpoints share.
class JsonWriter : public AnswerWriter {
 public:
  JsonWriter(AnswerInfo info, TokenBytes token_bytes)
      : info_(std::move(info)), token_bytes_(std::move(token_bytes)) {}

  std::string whole(std::span<const RequestUpdate> choices) override {
    Json list = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      list.push_back(whole_choice(i, choices[i]));
    }
    Json out = head(whole_object());
    out["choices"] = std::move(list);
    out["usage"] = usage(choices);
    return dump(out);
  }

  std::string last_events(std::span<const RequestUpdate> choices, bool with_usage) override {
    std::string out;
    if (with_usage) {
      Json last = head(chunk_object());
      last["choices"] = Json::array();
      last["usage"] = usage(choices);
      out = event(dump(last));
    }
    return out + event("[DONE]");
  }

 protected:
  virtual const char* whole_object() const = 0;
  virtual const char* chunk_object() const = 0;
  virtual Json whole_choice(size_t index, const RequestUpdate& choice) = 0;

  [[nodiscard]] const TokenBytes& token_bytes() const { return token_bytes_; }

  std::string chunk(Json choice) {
    Json out = head(chunk_object());
    out["choices"] = Json::array();
    out["choices"].push_back(std::move(choice));
    return event(dump(out));
  }

  // Whether an update says something that a client can see.
  static bool has_news(const RequestUpdate& update) {
    return !update.text.empty() || !update.logprobs.empty() ||
           update.finish_reason != FinishReason::kNone;
  }

 private:
  [[nodiscard]] Json head(const char* object) const {
    Json out;
    out["id"] = info_.id;
    out["object"] = object;
    out["created"] = info_.created;
    out["model"] = info_.model;
    return out;
  }

  AnswerInfo info_;
  TokenBytes token_bytes_;
};

class CompletionWriter final : public JsonWriter {
 public:
  CompletionWriter(AnswerInfo info, TokenBytes token_bytes, size_t num_choices)
      : JsonWriter(std::move(info), std::move(token_bytes)), text_offsets_(num_choices, 0) {}

  std::string events(size_t choice, const RequestUpdate& update) override {
    return has_news(update) ? chunk(whole_choice(choice, update)) : "";
  }

 private:
  const char* whole_object() const override { return "text_completion"; }
  const char* chunk_object() const override { return "text_completion"; }

  Json whole_choice(size_t index, const RequestUpdate& choice) override {
    Json out;
    out["index"] = index;
    out["text"] = choice.text;
    out["logprobs"] =
        choice.logprobs.empty()
            ? Json(nullptr)
            : completion_logprobs(choice.logprobs, token_bytes(), text_offsets_[index]);
    out["finish_reason"] = finish_reason(choice);
    out["stop_reason"] = stop_reason(choice);
    return out;
  }

  std::vector<int64_t> text_offsets_;
};

class ChatWriter final : public JsonWriter {
 public:
  ChatWriter(AnswerInfo info, TokenBytes token_bytes, size_t num_choices)
      : JsonWriter(std::move(info), std::move(token_bytes)), role_sent_(num_choices, false) {}

  // The role comes with the first token, not before it, so that clients measure the first token.
  std::string events(size_t choice, const RequestUpdate& update) override {
    std::string out;
    if (!role_sent_[choice]) {
      role_sent_[choice] = true;
      Json delta;
      delta["role"] = "assistant";
      delta["content"] = "";
      out = chunk(delta_choice(choice, std::move(delta), {}));
    }
    if (has_news(update)) {
      Json delta = Json::object();
      if (!update.text.empty()) {
        delta["content"] = update.text;
      }
      out += chunk(delta_choice(choice, std::move(delta), update));
    }
    return out;
  }

 private:
  const char* whole_object() const override { return "chat.completion"; }
  const char* chunk_object() const override { return "chat.completion.chunk"; }

  Json logprobs(const RequestUpdate& update) {
    return update.logprobs.empty() ? Json(nullptr) : chat_logprobs(update.logprobs, token_bytes());
  }

  Json delta_choice(size_t index, Json delta, const RequestUpdate& update) {
    Json out;
    out["index"] = index;
    out["delta"] = std::move(delta);
    out["logprobs"] = logprobs(update);
    out["finish_reason"] = finish_reason(update);
    if (update.finish_reason != FinishReason::kNone) {
      out["stop_reason"] = stop_reason(update);
    }
    return out;
  }

  Json whole_choice(size_t index, const RequestUpdate& choice) override {
    Json out;
    out["index"] = index;
    out["message"]["role"] = "assistant";
    out["message"]["content"] = choice.text;
    out["logprobs"] = logprobs(choice);
    out["finish_reason"] = finish_reason(choice);
    out["stop_reason"] = stop_reason(choice);
    return out;
  }

  std::vector<bool> role_sent_;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_answer_writer(Endpoint endpoint,
                                                 AnswerInfo info,
                                                 TokenBytes token_bytes,
                                                 size_t num_choices) {
  if (endpoint == Endpoint::kChat) {
    return std::make_unique<ChatWriter>(std::move(info), std::move(token_bytes), num_choices);
  }
  return std::make_unique<CompletionWriter>(std::move(info), std::move(token_bytes), num_choices);
}

std::string error_events(const ApiError& error) {
  return event(error_json(error)) + event("[DONE]");
}

}  // namespace warprow
