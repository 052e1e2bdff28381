// SPDX-License-Identifier: Apache-2.0
// The objects and events of /v1/messages. A message is a list of content blocks (thinking, text, tool_use). Each block
// is started, filled by deltas and stopped.
#include "server/endpoints/messages_error.h"
#include "server/endpoints/writers.h"
#include "server/response/answer_json.h"

#include <string>
#include <utility>
#include <variant>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

class MessagesWriter final : public AnswerWriter {
 public:
  MessagesWriter(AnswerInfo info, int64_t num_input_tokens, const MakeChatParser& make_parser)
      : info_(std::move(info)),
        num_input_tokens_(num_input_tokens),
        parser_(make_parser ? make_parser(0) : nullptr) {}

  std::string whole(std::span<const RequestUpdate> choices) override {
    const RequestUpdate& update = choices.front();
    const bool cut_off = update.finish_reason != FinishReason::kStop;
    show(parser_ ? parse_whole(*parser_, update.text, cut_off) : ChatPiece{.content = update.text});
    close_block();
    Json out = message();
    out.update(ending(update));
    out["usage"] = usage(update);
    return json_text(out);
  }

  std::string events(size_t /*choice*/, const RequestUpdate& update) override {
    begin();
    const bool ends = update.finish_reason != FinishReason::kNone;
    ChatPiece piece{.content = update.text};
    if (parser_) {
      piece = parser_->push(update.text);
      if (ends) {
        piece.append(parser_->finish());
      }
    }
    show(piece);
    return std::exchange(events_, "");
  }

  std::string last_events(std::span<const RequestUpdate> choices, bool /*with_usage*/) override {
    begin();
    close_block();
    const RequestUpdate& update = choices.front();
    send("message_delta", {{"delta", ending(update)}, {"usage", usage(update)}});
    send("message_stop", Json::object());
    return std::exchange(events_, "");
  }

  std::string error_events(const ApiError& error) override {
    events_ += "event: error\n" + sse_event(messages_error_json(error));
    return std::exchange(events_, "");
  }

 private:
  enum class Kind { kNone, kThinking, kText, kCall };

  // Without what only the end decides.
  [[nodiscard]] Json message() const {
    Json out;
    out["id"] = info_.id;
    out["type"] = "message";
    out["role"] = "assistant";
    out["model"] = info_.model;
    out["content"] = blocks_;
    out["stop_reason"] = nullptr;
    out["stop_sequence"] = nullptr;
    return out;
  }

  [[nodiscard]] Json ending(const RequestUpdate& update) const {
    const auto* sequence = std::get_if<std::string>(&update.stop_reason);
    const char* reason = update.finish_reason == FinishReason::kLength ? "max_tokens"
                         : has_calls_                                  ? "tool_use"
                         : sequence != nullptr                         ? "stop_sequence"
                                                                       : "end_turn";
    return {{"stop_reason", reason},
            {"stop_sequence", sequence != nullptr ? Json(*sequence) : Json()}};
  }

  // Tokens that the prefix cache had count apart.
  [[nodiscard]] static Json usage(const RequestUpdate& update) {
    return {{"input_tokens", update.num_prompt_tokens - update.num_cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", update.num_cached_tokens},
            {"output_tokens", update.num_output_tokens}};
  }

  void begin() {
    if (std::exchange(begun_, true)) {
      return;
    }
    Json start = message();
    start["usage"] = {{"input_tokens", num_input_tokens_},
                      {"cache_creation_input_tokens", 0},
                      {"cache_read_input_tokens", 0},
                      {"output_tokens", 0}};
    send("message_start", {{"message", std::move(start)}});
  }

  void show(const ChatPiece& piece) {
    if (!piece.reasoning.empty()) {
      add_text(Kind::kThinking, piece.reasoning);
    }
    if (!piece.content.empty()) {
      add_text(Kind::kText, piece.content);
    }
    for (const ToolCallPiece& call : piece.calls) {
      add_call(call);
    }
  }

  void send(const char* type, const Json& fields) {
    Json event;
    event["type"] = type;
    event.update(fields);
    events_ += fmt::format("event: {}\n{}", type, sse_event(json_text(event)));
  }
  // An event about the open block.
  void send_of_block(const char* type, const Json& fields) {
    Json all = {{"index", blocks_.size()}};
    all.update(fields);
    send(type, all);
  }

  void open_block(Kind kind, Json block) {
    close_block();
    kind_ = kind;
    block_ = std::move(block);
    text_.clear();
    send_of_block("content_block_start", {{"content_block", block_}});
  }

  void add_text(Kind kind, const std::string& text) {
    if (kind_ != kind && kind == Kind::kThinking) {
      open_block(kind, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
    } else if (kind_ != kind) {
      open_block(kind, {{"type", "text"}, {"text", ""}});
    }
    text_ += text;
    const Json delta = kind == Kind::kThinking
                           ? Json{{"type", "thinking_delta"}, {"thinking", text}}
                           : Json{{"type", "text_delta"}, {"text", text}};
    send_of_block("content_block_delta", {{"delta", delta}});
  }

  void add_call(const ToolCallPiece& call) {
    if (!call.name.empty()) {
      has_calls_ = true;
      open_block(
          Kind::kCall,
          {{"type", "tool_use"}, {"id", call.id}, {"name", call.name}, {"input", Json::object()}});
    }
    text_ += call.arguments;
    if (!call.arguments.empty()) {
      send_of_block("content_block_delta",
                    {{"delta", {{"type", "input_json_delta"}, {"partial_json", call.arguments}}}});
    }
  }

  void close_block() {
    if (kind_ == Kind::kNone) {
      return;
    }
    if (kind_ == Kind::kThinking) {
      block_["thinking"] = text_;
    } else if (kind_ == Kind::kText) {
      block_["text"] = text_;
    } else {
      // A call that max_tokens cut off has no input that could be read.
      Json input = Json::parse(text_, nullptr, false);
      block_["input"] = input.is_object() ? std::move(input) : Json::object();
    }
    send_of_block("content_block_stop", Json::object());
    blocks_.push_back(std::move(block_));
    kind_ = Kind::kNone;
  }

  AnswerInfo info_;
  int64_t num_input_tokens_;
  std::unique_ptr<ChatParser> parser_;  // null: all text is content
  Json blocks_ = Json::array();         // the complete blocks
  Kind kind_ = Kind::kNone;             // of the block that is open
  Json block_;
  std::string text_;  // of the block that is open
  std::string events_;
  bool begun_ = false;
  bool has_calls_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_messages_writer(AnswerInfo info,
                                                   int64_t num_input_tokens,
                                                   const MakeChatParser& make_parser) {
  return std::make_unique<MessagesWriter>(std::move(info), num_input_tokens, make_parser);
}

}  // namespace warprow
