// SPDX-License-Identifier: Apache-2.0
// The objects and events of /v1/responses. A response is a list of items (reasoning, message, function calls). Each
// item is added, filled and completed by events.
#include "server/endpoints/writers.h"
#include "server/response/answer_json.h"

#include <utility>

#include <fmt/format.h>

namespace warprow {
namespace {

using Json = nlohmann::ordered_json;

class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(AnswerInfo info, Json echoed, const MakeChatParser& make_parser)
      : info_(std::move(info)),
        echoed_(std::move(echoed)),
        parser_(make_parser ? make_parser(0) : nullptr) {}

  std::string whole(std::span<const RequestUpdate> choices) override {
    const RequestUpdate& update = choices.front();
    const bool cut_off = update.finish_reason != FinishReason::kStop;
    show(parser_ ? parse_whole(*parser_, update.text, cut_off) : ChatPiece{.content = update.text});
    end_items();
    return json_text(object(status_of(update), &update));
  }

  std::string events(size_t /*choice*/, const RequestUpdate& update) override {
    if (!begun_) {
      begun_ = true;
      send("response.created", {{"response", object("in_progress", nullptr)}});
      send("response.in_progress", {{"response", object("in_progress", nullptr)}});
    }
    take(update);
    return std::exchange(events_, "");
  }

  std::string last_events(std::span<const RequestUpdate> choices, bool /*with_usage*/) override {
    const char* status = status_of(choices.front());
    send(fmt::format("response.{}", status), {{"response", object(status, &choices.front())}});
    return std::exchange(events_, "");
  }

  std::string error_events(const ApiError& error) override {
    Json response = object("failed", nullptr);
    response["error"] = {{"code", "server_error"}, {"message", error.message}};
    send("response.failed", {{"response", std::move(response)}});
    return std::exchange(events_, "");
  }

 private:
  enum class Kind { kNone, kReasoning, kMessage, kCall };

  static const char* status_of(const RequestUpdate& update) {
    return update.finish_reason == FinishReason::kLength ? "incomplete" : "completed";
  }

  Json object(const char* status, const RequestUpdate* ended) const {
    Json out;
    out["id"] = info_.id;
    out["object"] = "response";
    out["created_at"] = info_.created;
    out["status"] = status;
    out["error"] = nullptr;
    const bool cut = std::string_view(status) == "incomplete";
    out["incomplete_details"] = cut ? Json{{"reason", "max_output_tokens"}} : Json();
    out["model"] = info_.model;
    out["output"] = items_;
    out.update(echoed_);
    out["usage"] = nullptr;
    if (ended != nullptr) {
      out["usage"] = {{"input_tokens", ended->num_prompt_tokens},
                      {"input_tokens_details", {{"cached_tokens", ended->num_cached_tokens}}},
                      {"output_tokens", ended->num_output_tokens},
                      {"output_tokens_details", {{"reasoning_tokens", 0}}},
                      {"total_tokens", ended->num_prompt_tokens + ended->num_output_tokens}};
      out["timings"] = timings_json({ended, 1});
    }
    return out;
  }

  void take(const RequestUpdate& update) {
    const bool ends = update.finish_reason != FinishReason::kNone;
    ChatPiece piece{.content = update.text};
    if (parser_) {
      piece = parser_->push(update.text);
      if (ends) {
        piece.append(parser_->finish());
      }
    }
    show(piece);
    if (ends) {
      end_items();
    }
  }

  void show(const ChatPiece& piece) {
    if (!piece.reasoning.empty()) {
      add_text(Kind::kReasoning, piece.reasoning);
    }
    if (!piece.content.empty()) {
      add_text(Kind::kMessage, piece.content);
    }
    for (const ToolCallPiece& call : piece.calls) {
      add_call(call);
    }
  }

  void end_items() {
    if (items_.empty() && kind_ == Kind::kNone) {
      add_text(Kind::kMessage, "");
    }
    close_item();
  }

  // Appends one numbered event.
  void send(const std::string& type, const Json& fields) {
    Json event;
    event["type"] = type;
    event["sequence_number"] = sequence_++;
    event.update(fields);
    events_ += "event: " + type + "\n" + sse_event(json_text(event));
  }
  // Appends one event about the open item.
  void send_of_item(const char* type, const Json& fields) {
    Json all = {{"item_id", item_["id"]}, {"output_index", items_.size()}};
    if (kind_ != Kind::kCall) {
      all["content_index"] = 0;
    }
    all.update(fields);
    send(type, all);
  }

  Json text_part() const {
    return kind_ == Kind::kReasoning
               ? Json{{"type", "reasoning_text"}, {"text", text_}}
               : Json{{"type", "output_text"}, {"text", text_}, {"annotations", Json::array()}};
  }

  std::string item_id(const char* prefix) const {
    return fmt::format("{}_{}_{}", prefix, info_.id.substr(info_.id.find('-') + 1), items_.size());
  }

  void open_item(Kind kind, Json item) {
    close_item();
    kind_ = kind;
    item_ = std::move(item);
    text_.clear();
    send("response.output_item.added", {{"output_index", items_.size()}, {"item", item_}});
    if (kind != Kind::kCall) {
      send_of_item("response.content_part.added", {{"part", text_part()}});
    }
  }

  void add_text(Kind kind, const std::string& text) {
    if (kind_ != kind && kind == Kind::kReasoning) {
      open_item(kind,
                {{"type", "reasoning"},
                 {"id", item_id("rs")},
                 {"summary", Json::array()},
                 {"content", Json::array()}});
    } else if (kind_ != kind) {
      open_item(kind,
                {{"type", "message"},
                 {"id", item_id("msg")},
                 {"status", "in_progress"},
                 {"role", "assistant"},
                 {"content", Json::array()}});
    }
    text_ += text;
    if (!text.empty()) {
      Json fields = {{"delta", text}};
      if (kind == Kind::kMessage) {
        fields["logprobs"] = Json::array();
      }
      send_of_item(
          kind == Kind::kReasoning ? "response.reasoning_text.delta" : "response.output_text.delta",
          fields);
    }
  }

  void add_call(const ToolCallPiece& call) {
    if (!call.name.empty()) {
      open_item(Kind::kCall,
                {{"type", "function_call"},
                 {"id", item_id("fc")},
                 {"call_id", call.id},
                 {"name", call.name},
                 {"arguments", ""},
                 {"status", "in_progress"}});
    }
    text_ += call.arguments;
    if (!call.arguments.empty()) {
      send_of_item("response.function_call_arguments.delta", {{"delta", call.arguments}});
    }
  }

  void close_item() {
    if (kind_ == Kind::kNone) {
      return;
    }
    if (kind_ == Kind::kCall) {
      item_["arguments"] = text_;
      send_of_item("response.function_call_arguments.done",
                   {{"name", item_["name"]}, {"arguments", text_}});
    } else {
      item_["content"].push_back(text_part());
      Json fields = {{"text", text_}};
      if (kind_ == Kind::kMessage) {
        fields["logprobs"] = Json::array();
      }
      send_of_item(
          kind_ == Kind::kReasoning ? "response.reasoning_text.done" : "response.output_text.done",
          fields);
      send_of_item("response.content_part.done", {{"part", text_part()}});
    }
    if (item_.contains("status")) {
      item_["status"] = "completed";
    }
    send("response.output_item.done", {{"output_index", items_.size()}, {"item", item_}});
    items_.push_back(std::move(item_));
    kind_ = Kind::kNone;
  }

  AnswerInfo info_;
  Json echoed_;
  std::unique_ptr<ChatParser> parser_;  // null: all text is content
  Json items_ = Json::array();          // the completed items
  Kind kind_ = Kind::kNone;             // of the item that is open
  Json item_;
  std::string text_;  // of the item that is open
  std::string events_;
  int64_t sequence_ = 0;
  bool begun_ = false;
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(AnswerInfo info,
                                                    nlohmann::ordered_json echoed,
                                                    const MakeChatParser& make_parser) {
  return std::make_unique<ResponsesWriter>(std::move(info), std::move(echoed), make_parser);
}

}  // namespace warprow
