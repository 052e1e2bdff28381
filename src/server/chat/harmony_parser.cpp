// SPDX-License-Identifier: Apache-2.0
#include "server/chat/harmony_parser.h"

#include "server/chat/text_scan.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// What ends a message: <|start|> if the model leaves out <|end|>.
constexpr std::string_view kEnds[] = {
    marker::kEndMessage, marker::kEndCall, marker::kReturn, marker::kStart};
constexpr std::string_view kTo = "to=";
constexpr std::string_view kFunctions = "functions.";

// The word behind a mark in a message's header; empty if the mark is absent.
std::string_view word_behind(std::string_view header, std::string_view mark) {
  const size_t at = header.find(mark);
  if (at == std::string_view::npos) {
    return {};
  }
  header.remove_prefix(at + mark.size());
  return header.substr(0, header.find_first_of(" \t\r\n<"));
}

class HarmonyParser final : public ChatParser {
 public:
  explicit HarmonyParser(ChatParserOptions options) : options_(std::move(options)) {}

  ChatPiece push(std::string_view text) override {
    pending_ += text;
    num_pushed_ += text.size();
    ChatPiece out;
    while (step(out)) {
    }
    return out;
  }

  // A header that is cut off is no text.
  ChatPiece finish() override {
    finished_ = true;
    ChatPiece out = push("");
    if (at_ == At::kBody) {  // as usual: the token that ends an answer is not in its text
      end_message();
    }
    pending_.clear();
    return out;
  }

  [[nodiscard]] bool failed() const override { return failed_; }
  [[nodiscard]] size_t body_at() const override { return body_at_; }

 private:
  enum class At { kStart, kHeader, kBody };
  enum class Kind { kReasoning, kContent, kCall };

  bool step(ChatPiece& out) {
    switch (at_) {
      case At::kStart:
        return begin();
      case At::kHeader:
        return read_header(out);
      case At::kBody:
        return read_body(out);
    }
    return false;
  }

  bool begin() {
    const std::string_view text = pending_;
    for (const std::string_view mark :
         {marker::kChannel, marker::kStart, std::string_view(" to="), kTo}) {
      if (text.starts_with(mark)) {
        at_ = At::kHeader;
        return true;
      }
      if (!finished_ && mark.starts_with(text)) {
        return false;
      }
    }
    begin_body(Kind::kContent);
    return true;
  }

  bool read_header(ChatPiece& out) {
    const size_t end = pending_.find(marker::kMessage);
    if (end == std::string::npos) {
      return false;
    }
    const std::string header = pending_.substr(0, end);
    pending_.erase(0, end + marker::kMessage.size());
    const std::string_view channel = word_behind(header, marker::kChannel);
    std::string_view recipient = word_behind(header, kTo);
    const bool is_function = recipient.starts_with(kFunctions);
    recipient.remove_prefix(is_function ? kFunctions.size() : 0);
    const bool is_call =
        !recipient.empty() && (is_function || (channel != "analysis" && recipient != "assistant"));
    if (is_call && options_.format == ToolFormat::kHarmony) {
      begin_body(Kind::kCall);
      show_call(out, std::string(recipient));
    } else {
      begin_body(channel == "analysis" ? Kind::kReasoning : Kind::kContent);
    }
    return true;
  }

  void begin_body(Kind kind) {
    at_ = At::kBody;
    kind_ = kind;
    if (kind != Kind::kReasoning && !has_body_) {
      has_body_ = true;
      body_at_ = num_pushed_ - pending_.size();
    }
  }

  bool read_body(ChatPiece& out) {
    const std::string_view text = pending_;
    size_t at = std::string_view::npos;
    size_t partial = 0;
    std::string_view found;
    for (const std::string_view mark : kEnds) {
      if (const size_t begin = text.find(mark); begin < at) {
        at = begin;
        found = mark;
      }
      partial = std::max(partial, finished_ ? 0 : partial_marker(text, mark));
    }
    const bool ends = at != std::string_view::npos;
    const size_t sure = ends ? at : text.size() - partial;
    give(out, text.substr(0, sure));
    pending_.erase(0, sure + (ends && found != marker::kStart ? found.size() : 0));
    if (ends) {
      end_message();
      at_ = At::kHeader;
    }
    return ends;
  }

  void give(ChatPiece& out, std::string_view text) {
    if (text.empty()) {
      return;
    }
    if (kind_ == Kind::kContent) {
      out.content += text;
    } else if (kind_ == Kind::kReasoning) {
      give_reasoning(out, text);
    } else {
      arguments_ += text;
      if (is_wanted()) {
        out.calls.push_back({.index = num_calls_, .arguments = std::string(text)});
      }
    }
  }

  // Several messages of reasoning are parted by a line end.
  void give_reasoning(ChatPiece& out, std::string_view text) {
    if (options_.include_reasoning) {
      out.reasoning += std::exchange(parts_reasoning_, false) ? "\n" : "";
      out.reasoning += text;
    }
    has_reasoning_ = true;
  }

  void show_call(ChatPiece& out, std::string name) {
    arguments_.clear();
    if (is_wanted()) {
      out.calls.push_back({.index = num_calls_,
                           .id = fmt::format("{}{}", options_.id_prefix, num_calls_),
                           .name = std::move(name)});
    }
  }

  [[nodiscard]] bool is_wanted() const { return options_.parallel || num_calls_ == 0; }

  void end_message() {
    parts_reasoning_ = has_reasoning_;
    if (kind_ == Kind::kCall) {
      failed_ = failed_ || !nlohmann::json::accept(arguments_);
      num_calls_ += is_wanted() ? 1 : 0;
    }
  }

  ChatParserOptions options_;
  At at_ = At::kStart;
  Kind kind_ = Kind::kContent;
  std::string pending_;
  std::string arguments_;  // of the current call
  size_t num_pushed_ = 0;  // bytes
  size_t body_at_ = 0;
  int32_t num_calls_ = 0;
  bool has_body_ = false;       // a message other than reasoning has begun
  bool has_reasoning_ = false;  // reasoning was given
  bool parts_reasoning_ = false;
  bool finished_ = false;
  bool failed_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> make_harmony_parser(ChatParserOptions options) {
  return std::make_unique<HarmonyParser>(std::move(options));
}

}  // namespace warprow
