// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_parser.h"

#include "server/chat/call_reader.h"
#include "server/chat/granite_parser.h"
#include "server/chat/harmony_parser.h"
#include "server/chat/marked_calls.h"
#include "server/chat/text_scan.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr std::string_view kNameLetters =
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.";

// The text between [TOOL_CALLS] and the arguments: name, [CALL_ID] and an id, [ARGS]. Only the name is required.
struct MistralHeader {
  enum class Status { kMore, kGood, kBad };
  Status status = Status::kBad;
  size_t len = 0;  // kGood: up to the arguments' bracket
  std::string_view name{};
};

MistralHeader read_mistral_header(std::string_view text) {
  using Status = MistralHeader::Status;
  size_t at = first_visible(text);
  const auto read_word = [&] {
    const size_t begin = at;
    at = std::min(text.find_first_not_of(kNameLetters, at), text.size());
    const std::string_view word = text.substr(begin, at - begin);
    at += first_visible(text.substr(at));
    return word;
  };
  const std::string_view name = read_word();
  for (const std::string_view part : {marker::kMistralId, marker::kMistralArgs}) {
    const std::string_view rest = text.substr(at);
    if (rest.starts_with(part)) {
      at += part.size();
      if (part == marker::kMistralId) {
        read_word();
      }
    } else if (part.starts_with(rest)) {
      return {.status = Status::kMore};
    }
  }
  at += first_visible(text.substr(at));
  if (at == text.size()) {
    return {.status = Status::kMore};
  }
  const bool good = text[at] == '{' && !name.empty();
  return {.status = good ? Status::kGood : Status::kBad, .len = at, .name = name};
}

// A call's id: nine letters and digits, a hash of the prefix and the call's number.
std::string short_id(std::string_view prefix, int32_t number) {
  constexpr size_t kLen = 9;
  constexpr uint64_t kFnvOffset = 0xCBF29CE484222325U;
  constexpr uint64_t kFnvPrime = 0x100000001B3U;
  constexpr std::string_view kDigits = "0123456789abcdefghijklmnopqrstuvwxyz";
  uint64_t hash = kFnvOffset;
  for (const char c : fmt::format("{}{}", prefix, number)) {
    hash = (hash ^ static_cast<uint8_t>(c)) * kFnvPrime;
  }
  std::string out;
  for (size_t i = 0; i < kLen; ++i, hash /= kDigits.size()) {
    out += kDigits[hash % kDigits.size()];
  }
  return out;
}

// Parses the sections of a text one after the other. `pending_` is the text whose section is undecided.
class SectionParser final : public ChatParser {
 public:
  explicit SectionParser(ChatParserOptions options)
      : options_(std::move(options)), thinks_(options_.reasoning == ReasoningFormat::kThink) {
    if (thinks_ && options_.begins_reasoning) {
      section_ = Section::kReasoning;
    }
  }

  ChatPiece push(std::string_view text) override {
    pending_ += text;
    num_pushed_ += text.size();
    ChatPiece out;
    while (step(out)) {
    }
    return out;
  }

  // A call that is cut off before its name is complete becomes content, unless other calls came before it.
  ChatPiece finish() override {
    ChatPiece out;
    finished_ = true;
    while (step(out)) {
    }
    if (section_ == Section::kReasoning) {
      give_reasoning(out, pending_);
    } else if (section_ == Section::kCall) {
      give_arguments(out);
      failed_ = failed_ || !is_forced();
      out.content += call_shown_ || num_calls_ > 0 ? "" : opening_ + reader_->text();
    } else if (section_ != Section::kBetweenCalls) {
      const bool is_rest = num_calls_ > 0 && first_visible(pending_) == pending_.size();
      out.content += is_rest ? "" : pending_;  // drops white space after the last call
    } else if (is_open_ && num_calls_ == 0) {
      out.content += opening_ + pending_;
    }
    pending_.clear();
    return out;
  }

  [[nodiscard]] bool failed() const override { return failed_; }
  [[nodiscard]] size_t body_at() const override { return body_at_; }

 private:
  enum class Section { kStart, kReasoning, kContent, kCall, kBetweenCalls };

  // A grammar has forced the text to be calls and nothing else.
  [[nodiscard]] bool is_forced() const {
    return options_.format == ToolFormat::kList || options_.format == ToolFormat::kNamed;
  }

  // Consumes a part of pending_; false if it needs more text.
  bool step(ChatPiece& out) {
    switch (section_) {
      case Section::kStart:
        return begin();
      case Section::kReasoning:
        return read_reasoning(out);
      case Section::kContent:
        return read_content(out);
      case Section::kCall:
        return read_call(out);
      case Section::kBetweenCalls:
        return skip_to_call(out);
    }
    return false;
  }

  bool begin() {
    const size_t visible = first_visible(pending_);
    const std::string_view rest = std::string_view(pending_).substr(visible);
    for (const std::string_view opening : {marker::kThink, marker::kPythonTag}) {
      const bool thinks = opening == marker::kThink;
      const bool known = thinks ? thinks_ : options_.format == ToolFormat::kLlama3;
      if (known && rest.starts_with(opening)) {
        section_ = Section::kReasoning;
        if (!thinks) {
          open_calls(pending_.substr(0, visible + opening.size()));
        }
        pending_.erase(0, visible + opening.size());
        return true;
      }
      if (known && !finished_ && opening.starts_with(rest)) {
        return false;
      }
    }
    if (rest.empty() && !finished_) {
      return false;
    }
    section_ = Section::kContent;
    if (options_.format == ToolFormat::kLlama3 && rest.starts_with('{')) {
      open_calls("");
    }
    if (is_forced()) {
      pending_.erase(0, visible);
      open_calls("");
    }
    if (options_.format == ToolFormat::kNamed) {
      begin_call(CallReader(options_.function));
    }
    return true;
  }

  void give_reasoning(ChatPiece& out, std::string_view text) const {
    if (options_.include_reasoning) {
      out.reasoning += text;
    }
  }

  bool read_reasoning(ChatPiece& out) {
    if (!reasoning_begun_) {  // drop the white space after <think>
      pending_.erase(0, first_visible(pending_));
      reasoning_begun_ = !pending_.empty();
    }
    const size_t end = pending_.find(marker::kEndThink);
    if (end != std::string::npos) {
      const size_t last = std::string_view(pending_).substr(0, end).find_last_not_of("\r\n");
      give_reasoning(out, std::string_view(pending_).substr(0, last + 1));
      pending_.erase(0, end + marker::kEndThink.size());
      section_ = Section::kStart;
      thinks_ = false;
      body_at_ = num_pushed_ - pending_.size();
      skip_spaces_ = true;
      return true;
    }
    // Line ends before </think> are dropped, so they are held back too.
    size_t sure = pending_.size() - partial_marker(pending_, marker::kEndThink);
    sure = std::string_view(pending_).substr(0, sure).find_last_not_of("\r\n") + 1;
    give_reasoning(out, std::string_view(pending_).substr(0, sure));
    pending_.erase(0, sure);
    return false;
  }

  bool read_content(ChatPiece& out) {
    if (skip_spaces_) {
      pending_.erase(0, first_visible(pending_));
      skip_spaces_ = pending_.empty();
    }
    const std::string_view opening = options_.format == ToolFormat::kHermes ? marker::kHermesCall
                                     : options_.format == ToolFormat::kMistral
                                         ? marker::kMistralCalls
                                         : "";
    const size_t at = opening.empty() ? std::string::npos : pending_.find(opening);
    size_t sure = pending_.size();
    if (at != std::string::npos) {
      sure = at;
    } else if (!opening.empty() && !finished_) {
      sure -= partial_marker(pending_, opening);
    }
    if (at != std::string::npos || (!opening.empty() && (!finished_ || num_calls_ > 0))) {
      // White space before and after a call is not content.
      sure = std::string_view(pending_).substr(0, sure).find_last_not_of(" \r\n") + 1;
    }
    out.content += std::string_view(pending_).substr(0, sure);
    has_content_ = has_content_ || sure > 0;
    if (at == std::string::npos) {
      pending_.erase(0, sure);
      return false;
    }
    open_calls(pending_.substr(sure, at + opening.size() - sure));
    pending_.erase(0, at + opening.size());
    return true;
  }

  // The text has announced a call.
  void open_calls(std::string opening) {
    opening_ = std::move(opening);
    is_open_ = true;
    section_ = Section::kBetweenCalls;
  }

  // The announced call is not a call: the text that was held back and all later text are content.
  void end_calls(ChatPiece& out) {
    out.content += opening_;
    opening_.clear();
    failed_ = true;
    options_.format = ToolFormat::kNone;
    section_ = Section::kContent;
    skip_spaces_ = false;
  }

  // After the opening of a call, or after a call: goes to the next object, or back to content.
  bool skip_to_call(ChatPiece& out) {
    const std::string_view pending = pending_;
    const size_t at = std::min(pending.find_first_not_of(" \t\r\n,;[]"), pending.size());
    if (pending.substr(at).starts_with('{')) {
      opening_ += pending.substr(0, at);
      pending_.erase(0, at);
      begin_call(CallReader());
      return true;
    }
    const std::string_view end = options_.format == ToolFormat::kHermes    ? marker::kEndHermesCall
                                 : options_.format == ToolFormat::kMistral ? marker::kMistralCalls
                                                                           : marker::kPythonTag;
    // "[TOOL_CALLS]" begins with the bracket of a list, so check for the marker first.
    if (const size_t found = pending.find(end); found <= at) {
      return pass_marker(out, found + end.size());
    }
    const std::string_view rest = pending.substr(at);
    if (rest.empty() || (!finished_ && partial_marker(pending, end) >= rest.size())) {
      return false;
    }
    if (!is_open_) {
      leave_calls(at);
      return true;
    }
    const bool in_list = pending.substr(0, at).find('[') != std::string_view::npos;
    if (options_.format == ToolFormat::kMistral && !in_list) {
      return read_mistral_name(out);
    }
    end_calls(out);
    return true;
  }

  // Goes to the content after the calls. The first `at` bytes of pending_ are white space and separators of calls.
  void leave_calls(size_t at) {
    section_ = Section::kContent;
    if (options_.format == ToolFormat::kHermes) {
      return;
    }
    const size_t end = pending_.find(options_.format == ToolFormat::kLlama3 ? ';' : ']');
    pending_.erase(0, end < at ? end + 1 : 0);
    skip_spaces_ = !has_content_;
  }

  // Handles another opening, or the closing marker of a call. A closing marker without a call is an error.
  bool pass_marker(ChatPiece& out, size_t len) {
    if (options_.format != ToolFormat::kHermes) {
      open_calls((is_open_ ? opening_ : "") + pending_.substr(0, len));
    } else if (is_open_) {
      end_calls(out);
      return true;
    } else {
      section_ = Section::kContent;
      skip_spaces_ = !has_content_;
    }
    pending_.erase(0, len);
    return true;
  }

  bool read_mistral_name(ChatPiece& out) {
    const MistralHeader header = read_mistral_header(pending_);
    if (header.status == MistralHeader::Status::kMore) {
      return false;
    }
    if (header.status == MistralHeader::Status::kBad) {
      end_calls(out);
      return true;
    }
    const std::string name(header.name);
    opening_ += pending_.substr(0, header.len);
    pending_.erase(0, header.len);
    begin_call(CallReader(name));
    return true;
  }

  void begin_call(CallReader reader) {
    reader_.emplace(std::move(reader));
    call_shown_ = false;
    section_ = Section::kCall;
  }

  bool read_call(ChatPiece& out) {
    for (size_t i = 0; i < pending_.size(); ++i) {
      const CallReader::Status status = reader_->feed(pending_[i]);
      if (status == CallReader::Status::kMore) {
        continue;
      }
      const bool done = status == CallReader::Status::kDone;
      pending_.erase(0, i + (done ? 1 : 0));
      give_arguments(out);
      end_call(out, done);
      return true;
    }
    pending_.clear();
    give_arguments(out);
    return false;
  }

  void end_call(ChatPiece& out, bool done) {
    num_calls_ += call_shown_ ? 1 : 0;
    if (done || call_shown_) {
      failed_ = failed_ || !done || !nlohmann::json::accept(reader_->text());
      section_ = Section::kBetweenCalls;
      is_open_ = false;
      opening_.clear();
      return;
    }
    // pending_ still begins with the character that broke the call.
    opening_ += reader_->text().substr(0, reader_->text().size() - 1);
    end_calls(out);
  }

  void give_arguments(ChatPiece& out) {
    if (reader_->name().empty() || reader_->text().empty() ||
        (!options_.parallel && num_calls_ > 0)) {
      return;
    }
    if (!call_shown_) {
      call_shown_ = true;
      out.calls.push_back({.index = num_calls_, .id = call_id(), .name = reader_->name()});
    }
    std::string arguments = reader_->take_arguments();
    if (!arguments.empty()) {
      out.calls.push_back({.index = num_calls_, .arguments = std::move(arguments)});
    }
  }

  [[nodiscard]] std::string call_id() const {
    return options_.short_ids ? short_id(options_.id_prefix, num_calls_)
                              : fmt::format("{}{}", options_.id_prefix, num_calls_);
  }

  ChatParserOptions options_;
  bool thinks_;  // a reasoning section may come
  Section section_ = Section::kStart;
  std::string pending_;
  size_t num_pushed_ = 0;             // bytes
  size_t body_at_ = 0;                // offset into the pushed bytes
  std::string opening_;               // the text that announced the current call, with its spaces
  bool is_open_ = false;              // a call was announced, and none has come since
  std::optional<CallReader> reader_;  // in kCall
  bool call_shown_ = false;           // the current call's name has been sent
  bool reasoning_begun_ = false;
  bool skip_spaces_ = false;
  bool has_content_ = false;  // content has been sent
  bool finished_ = false;
  bool failed_ = false;
  int32_t num_calls_ = 0;
};

// Reads reasoning with one parser, and calls in what that one takes for content with another.
class ChainedParser final : public ChatParser {
 public:
  ChainedParser(std::unique_ptr<ChatParser> reasoning, std::unique_ptr<ChatParser> calls)
      : reasoning_(std::move(reasoning)), calls_(std::move(calls)) {}

  ChatPiece push(std::string_view text) override { return pass_on(reasoning_->push(text)); }
  ChatPiece finish() override {
    ChatPiece out = pass_on(reasoning_->finish());
    out.append(calls_->finish());
    return out;
  }
  [[nodiscard]] bool failed() const override { return calls_->failed(); }
  [[nodiscard]] size_t body_at() const override { return reasoning_->body_at(); }

 private:
  ChatPiece pass_on(ChatPiece piece) {
    ChatPiece out = calls_->push(piece.content);
    out.reasoning = std::move(piece.reasoning);
    return out;
  }

  std::unique_ptr<ChatParser> reasoning_;
  std::unique_ptr<ChatParser> calls_;
};

std::unique_ptr<ChatParser> make_call_parser(ChatParserOptions options) {
  options.reasoning = ReasoningFormat::kNone;
  if (has_marked_calls(options.format)) {
    return make_marked_calls(std::move(options));
  }
  return std::make_unique<SectionParser>(std::move(options));
}

}  // namespace

std::unique_ptr<ChatParser> make_chat_parser(ChatParserOptions options) {
  if (options.reasoning == ReasoningFormat::kHarmony) {
    return make_harmony_parser(std::move(options));
  }
  if (options.reasoning == ReasoningFormat::kGranite) {
    auto reasoning = make_granite_parser(options.include_reasoning);
    return std::make_unique<ChainedParser>(std::move(reasoning),
                                           make_call_parser(std::move(options)));
  }
  if (has_marked_calls(options.format) && options.reasoning == ReasoningFormat::kThink) {
    auto reasoning = std::make_unique<SectionParser>(
        ChatParserOptions{.reasoning = options.reasoning,
                          .begins_reasoning = options.begins_reasoning,
                          .include_reasoning = options.include_reasoning});
    return std::make_unique<ChainedParser>(std::move(reasoning),
                                           make_call_parser(std::move(options)));
  }
  return has_marked_calls(options.format) ? make_call_parser(std::move(options))
                                          : std::make_unique<SectionParser>(std::move(options));
}

}  // namespace warprow
