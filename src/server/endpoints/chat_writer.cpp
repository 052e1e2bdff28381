// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/writers.h"
#include "server/response/answer_json.h"
#include "server/response/logprobs_json.h"

#include <utility>

namespace warprow {

namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kWhole = "chat.completion";
constexpr const char* kChunk = "chat.completion.chunk";

// The tool calls with their pieces joined, for a complete message.
Json whole_calls(const std::vector<ToolCallPiece>& pieces) {
  std::vector<ToolCallPiece> calls;
  for (const ToolCallPiece& piece : pieces) {
    if (!piece.name.empty()) {
      calls.push_back(piece);
    } else if (!calls.empty()) {
      calls.back().arguments += piece.arguments;
    }
  }
  Json out = Json::array();
  for (const ToolCallPiece& call : calls) {
    Json item;
    item["id"] = call.id;
    item["type"] = "function";
    item["function"] = {{"name", call.name}, {"arguments", call.arguments}};
    out.push_back(std::move(item));
  }
  return out;
}

// One entry for each call: clients that collect deltas copy a chunk's first list without joining its entries.
Json call_deltas(const std::vector<ToolCallPiece>& pieces) {
  std::vector<ToolCallPiece> calls;
  for (const ToolCallPiece& piece : pieces) {
    if (calls.empty() || calls.back().index != piece.index) {
      calls.push_back(piece);
    } else {
      calls.back().arguments += piece.arguments;
    }
  }
  Json out = Json::array();
  for (const ToolCallPiece& piece : calls) {
    Json item;
    item["index"] = piece.index;
    if (!piece.name.empty()) {
      item["id"] = piece.id;
      item["type"] = "function";
      item["function"]["name"] = piece.name;
    }
    item["function"]["arguments"] = piece.arguments;
    out.push_back(std::move(item));
  }
  return out;
}

class ChatWriter final : public AnswerWriter {
 public:
  ChatWriter(AnswerInfo info,
             TokenBytes token_bytes,
             AnswerShape shape,
             const MakeChatParser& make_parser)
      : info_(std::move(info)),
        token_bytes_(std::move(token_bytes)),
        shape_(std::move(shape)),
        states_(shape_.num_choices()) {
    for (size_t i = 0; make_parser && i < states_.size(); ++i) {
      states_[i].parser = make_parser(i);
    }
  }

  std::string whole(std::span<const RequestUpdate> choices) override {
    Json list = Json::array();
    for (size_t i = 0; i < choices.size(); ++i) {
      list.push_back(whole_choice(i, choices[i]));
    }
    Json out = answer_head(info_, kWhole);
    out["choices"] = std::move(list);
    if (shape_.shows_token_ids()) {
      out["prompt_token_ids"] = shape_.prompt_token_ids.front();
    }
    if (shape_.shows_prompt_logprobs) {
      out["prompt_logprobs"] = prompt_logprobs_json(choices.front().prompt_logprobs, token_bytes_);
    }
    out["usage"] = usage_json(choices, shape_);
    out["timings"] = timings_json(choices);
    return json_text(out);
  }

  // The role is sent with the first token, not before, so that clients measure the time to the first token.
  std::string events(size_t choice, const RequestUpdate& update) override {
    State& state = states_[choice];
    std::string out;
    if (!state.role_sent) {
      state.role_sent = true;
      Json delta;
      delta["role"] = "assistant";
      delta["content"] = "";
      out = chunk(delta_choice(choice, std::move(delta), {}), update, false, true);
      if (!echo().empty()) {
        out += chunk(delta_choice(choice, {{"content", echo()}}, {}), update, false);
      }
    }
    if (!has_news(update, shape_)) {
      return out;
    }
    const ChatPiece piece = read(state, update);
    const bool ends = update.finish_reason != FinishReason::kNone;
    const bool shows_ids = shape_.shows_token_ids() && !update.token_ids.empty();
    if (!piece.empty() || ends || shows_ids || !update.logprobs.empty()) {
      out += chunk(delta_choice(choice, delta_json(piece), update), update, ends);
    }
    return out;
  }

  std::string last_events(std::span<const RequestUpdate> choices, bool with_usage) override {
    std::string out;
    if (with_usage) {
      Json last = answer_head(info_, kChunk);
      last["choices"] = Json::array();
      last["usage"] = usage_json(choices, shape_);
      out = sse_event(json_text(last));
    }
    return out + sse_event("[DONE]");
  }

 private:
  struct State {
    std::unique_ptr<ChatParser> parser;  // null: all text is content
    bool role_sent = false;
    bool has_calls = false;
  };

  [[nodiscard]] std::string echo() const { return shape_.echo.empty() ? "" : shape_.echo.front(); }

  static ChatPiece read(State& state, const RequestUpdate& update) {
    if (!state.parser) {
      return {.content = update.text};
    }
    ChatPiece piece = state.parser->push(update.text);
    if (update.finish_reason != FinishReason::kNone) {
      piece.append(state.parser->finish());
    }
    state.has_calls = state.has_calls || !piece.calls.empty();
    return piece;
  }

  static Json delta_json(const ChatPiece& piece) {
    Json delta = Json::object();
    if (!piece.reasoning.empty()) {
      delta["reasoning_content"] = piece.reasoning;
    }
    if (!piece.content.empty()) {
      delta["content"] = piece.content;
    }
    if (!piece.calls.empty()) {
      delta["tool_calls"] = call_deltas(piece.calls);
    }
    return delta;
  }

  Json finish_reason(const State& state, const RequestUpdate& update) const {
    const bool is_call = state.has_calls && update.finish_reason == FinishReason::kStop;
    return is_call ? Json("tool_calls") : finish_reason_json(update);
  }

  Json logprobs(const RequestUpdate& update) {
    return update.logprobs.empty() ? Json(nullptr) : chat_logprobs(update.logprobs, token_bytes_);
  }

  Json delta_choice(size_t index, Json delta, const RequestUpdate& update) {
    Json out;
    out["index"] = index;
    out["delta"] = std::move(delta);
    out["logprobs"] = logprobs(update);
    out["finish_reason"] = finish_reason(states_[index], update);
    if (update.finish_reason != FinishReason::kNone) {
      out["stop_reason"] = stop_reason_json(update);
    }
    if (shape_.shows_token_ids()) {
      out["token_ids"] = update.token_ids;
    }
    return out;
  }

  std::string chunk(Json choice, const RequestUpdate& update, bool ends, bool is_first = false) {
    Json out = answer_head(info_, kChunk);
    out["choices"] = Json::array({std::move(choice)});
    if (is_first && shape_.shows_token_ids()) {
      out["prompt_token_ids"] = shape_.prompt_token_ids.front();
    }
    if (shape_.usage_in_chunks) {
      out["usage"] = usage_json({&update, 1}, shape_);
    }
    if (ends) {
      out["timings"] = timings_json({&update, 1});
    }
    return sse_event(json_text(out));
  }

  Json whole_choice(size_t index, const RequestUpdate& choice) {
    State& state = states_[index];
    const bool cut_off = choice.finish_reason != FinishReason::kStop;
    const ChatPiece piece = state.parser ? parse_whole(*state.parser, choice.text, cut_off)
                                         : ChatPiece{.content = choice.text};
    state.has_calls = !piece.calls.empty();
    const std::string content = echo() + piece.content;
    Json out;
    out["index"] = index;
    Json& message = out["message"];
    message["role"] = "assistant";
    message["content"] = content.empty() && !piece.calls.empty() ? Json(nullptr) : Json(content);
    if (!piece.reasoning.empty()) {
      message["reasoning_content"] = piece.reasoning;
    }
    if (!piece.calls.empty()) {
      message["tool_calls"] = whole_calls(piece.calls);
    }
    out["logprobs"] = logprobs(choice);
    out["finish_reason"] = finish_reason(state, choice);
    out["stop_reason"] = stop_reason_json(choice);
    if (shape_.shows_token_ids()) {
      out["token_ids"] = choice.token_ids;
    }
    return out;
  }

  AnswerInfo info_;
  TokenBytes token_bytes_;
  AnswerShape shape_;
  std::vector<State> states_;  // by choice
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(AnswerInfo info,
                                               TokenBytes token_bytes,
                                               AnswerShape shape,
                                               const MakeChatParser& make_parser) {
  return std::make_unique<ChatWriter>(
      std::move(info), std::move(token_bytes), std::move(shape), make_parser);
}

}  // namespace warprow
