// SPDX-License-Identifier: Apache-2.0
#include "server/chat/marked_calls.h"

#include "server/chat/call_reader.h"
#include "server/chat/python_call.h"
#include "server/chat/text_scan.h"
#include "server/chat/written_value.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

// The result of reading the next part of a call.
enum class Took {
  kMore,    // needs more text
  kSome,    // took a part
  kEnd,     // the calls are over, and content follows
  kBroken,  // the text is no call
};

// Content up to the opening marker of a format, then calls until they end. `pending_` is the text that is undecided.
// A format reads its calls part by part; what it takes is held until the call's name is known, since a text that is no
// call is content.
class MarkedCalls : public ChatParser {
 public:
  explicit MarkedCalls(ChatParserOptions options) : options_(std::move(options)) {}

  ChatPiece push(std::string_view text) override {
    pending_ += text;
    return run();
  }

  ChatPiece finish() override {
    finished_ = true;
    ChatPiece out = run();
    if (section_ == Section::kCalls) {
      failed_ = failed_ || in_call_ || num_calls_ == 0;
      out.content += num_calls_ == 0 && !shown_ ? held_ + pending_ : "";
    }
    pending_.clear();
    return out;
  }

  [[nodiscard]] bool failed() const override { return failed_; }
  [[nodiscard]] size_t body_at() const override { return 0; }

 protected:
  // Where calls begin in the content; npos if nowhere. partial: the length of an end of the text that may begin one.
  virtual size_t find_opening(std::string_view text, size_t& partial) const = 0;
  // Takes a part of the calls, the opening included.
  virtual Took read() = 0;

  [[nodiscard]] std::string_view pending() const { return pending_; }
  [[nodiscard]] const ChatParserOptions& options() const { return options_; }
  [[nodiscard]] bool has_content() const { return has_content_; }

  void take(size_t len) {
    held_ += shown_ ? "" : pending_.substr(0, len);
    pending_.erase(0, len);
  }
  void take_spaces() { take(first_visible(pending_)); }

  // Takes the marker. kMore: the text is a beginning of it.
  Took take_marker(std::string_view marker) {
    const std::string_view text = pending_;
    if (text.starts_with(marker)) {
      take(marker.size());
      return Took::kSome;
    }
    return marker.starts_with(text) ? Took::kMore : Took::kBroken;
  }

  void begin_call() { in_call_ = true; }
  void show_call(const std::string& name, const std::string& id = "") {
    shown_ = true;
    held_.clear();
    if (options_.parallel || num_calls_ == 0) {
      out_->calls.push_back(
          {.index = num_calls_,
           .id = id.empty() ? fmt::format("{}{}", options_.id_prefix, num_calls_) : id,
           .name = name});
    }
  }
  void add_arguments(std::string text) {
    written_ += text;
    if (!text.empty() && (options_.parallel || num_calls_ == 0)) {
      out_->calls.push_back({.index = num_calls_, .arguments = std::move(text)});
    }
  }
  void end_call() {
    failed_ = failed_ || !nlohmann::json::accept(written_);
    num_calls_ += options_.parallel || num_calls_ == 0 ? 1 : 0;
    in_call_ = false;
    shown_ = false;
    written_.clear();
    held_.clear();
  }

 private:
  enum class Section { kContent, kCalls, kRest };

  ChatPiece run() {
    ChatPiece out;
    out_ = &out;
    while (step(out)) {
    }
    return out;
  }

  bool step(ChatPiece& out) {
    switch (section_) {
      case Section::kContent:
        return read_content(out);
      case Section::kCalls:
        break;
      case Section::kRest:
        out.content += std::exchange(pending_, "");
        return false;
    }
    switch (read()) {
      case Took::kMore:
        return false;
      case Took::kSome:
        return true;
      case Took::kEnd:
        section_ = Section::kContent;
        held_.clear();
        skip_spaces_ = !has_content_;
        return true;
      case Took::kBroken:
        break;
    }
    // A call that was shown already stays, as far as it came.
    failed_ = true;
    section_ = Section::kRest;
    out.content += std::exchange(held_, "");
    return true;
  }

  bool read_content(ChatPiece& out) {
    if (skip_spaces_) {
      pending_.erase(0, first_visible(pending_));
      skip_spaces_ = pending_.empty();
    }
    size_t partial = 0;
    const size_t at = find_opening(pending_, partial);
    const bool found = at != std::string::npos;
    size_t sure = found ? at : pending_.size() - (finished_ ? 0 : partial);
    if (found || !finished_ || num_calls_ > 0) {
      // White space before and after a call is not content.
      sure = std::string_view(pending_).substr(0, sure).find_last_not_of(" \r\n") + 1;
    }
    out.content += std::string_view(pending_).substr(0, sure);
    has_content_ = has_content_ || sure > 0;
    pending_.erase(0, sure);
    if (found) {
      section_ = Section::kCalls;
      take(at - sure);
    }
    return found;
  }

  ChatParserOptions options_;
  Section section_ = Section::kContent;
  std::string pending_;
  std::string held_;  // what was taken since the opening or the last call, unless a call is shown
  std::string written_;  // the call's arguments
  ChatPiece* out_ = nullptr;
  bool in_call_ = false;
  bool shown_ = false;  // the call's name has been sent
  bool skip_spaces_ = false;
  bool has_content_ = false;
  bool finished_ = false;
  bool failed_ = false;
  int32_t num_calls_ = 0;
};

// A section of calls whose arguments are JSON, between markers.
struct SectionMarkers {
  std::string_view begin, begin_call, separator, end_call, end;
};

constexpr SectionMarkers kDeepSeekMarkers = {"<｜tool▁calls▁begin｜>",
                                             "<｜tool▁call▁begin｜>",
                                             "<｜tool▁sep｜>",
                                             "<｜tool▁call▁end｜>",
                                             "<｜tool▁calls▁end｜>"};
constexpr SectionMarkers kKimiMarkers = {"<|tool_calls_section_begin|>",
                                         "<|tool_call_begin|>",
                                         "<|tool_call_argument_begin|>",
                                         "<|tool_call_end|>",
                                         "<|tool_calls_section_end|>"};

// DeepSeek V3: the head is `function`, and the name and a fenced block follow the separator. V3.1: the head is the
// name. Kimi: the head is `functions.NAME:NUMBER`, which is also the call's id.
class JsonSection final : public MarkedCalls {
 public:
  explicit JsonSection(ChatParserOptions options)
      : MarkedCalls(std::move(options)),
        is_kimi_(this->options().format == ToolFormat::kKimi),
        markers_(is_kimi_ ? kKimiMarkers : kDeepSeekMarkers) {}

 private:
  enum class At { kOpening, kCall, kHead, kName, kArguments, kTail };

  size_t find_opening(std::string_view text, size_t& partial) const override {
    partial = partial_marker(text, markers_.begin);
    return text.find(markers_.begin);
  }

  Took read() override {
    switch (at_) {
      case At::kOpening:
        at_ = At::kCall;
        take(markers_.begin.size());
        return Took::kSome;
      case At::kCall:
        return read_call();
      case At::kHead:
        return read_head();
      case At::kName:
        return read_name();
      case At::kArguments:
        return read_arguments();
      case At::kTail:
        return read_tail();
    }
    return Took::kBroken;
  }

  Took read_call() {
    take_spaces();
    const Took ended = take_marker(markers_.end);
    if (ended == Took::kSome) {
      at_ = At::kOpening;
      return std::exchange(has_calls_, false) ? Took::kEnd : Took::kBroken;
    }
    const Took begun = take_marker(markers_.begin_call);
    if (begun == Took::kSome) {
      begin_call();
      at_ = At::kHead;
      return Took::kSome;
    }
    return ended == Took::kMore || begun == Took::kMore ? Took::kMore : Took::kBroken;
  }

  Took read_head() {
    const size_t end = pending().find(markers_.separator);
    if (end == std::string_view::npos) {
      return Took::kMore;
    }
    head_ = trimmed(pending().substr(0, end));
    take(end + markers_.separator.size());
    at_ = At::kName;
    return head_.empty() ? Took::kBroken : Took::kSome;
  }

  Took read_name() {
    const size_t visible = first_visible(pending());
    if (visible == pending().size()) {
      return Took::kMore;
    }
    if (pending()[visible] == '{') {
      return begin_arguments(is_kimi_ ? name_in_id() : head_);
    }
    const size_t fence = pending().find("```json");
    if (is_kimi_ || head_ != "function") {
      return Took::kBroken;
    }
    if (fence == std::string_view::npos) {
      return Took::kMore;
    }
    const std::string name(trimmed(pending().substr(0, fence)));
    take(fence + std::string_view("```json").size());
    return begin_arguments(name);
  }

  Took begin_arguments(const std::string& name) {
    if (name.empty()) {
      return Took::kBroken;
    }
    reader_.emplace(name);
    show_call(name, is_kimi_ ? head_ : "");
    at_ = At::kArguments;
    return Took::kSome;
  }

  [[nodiscard]] std::string name_in_id() const {
    std::string_view name = head_;
    if (name.starts_with("functions.")) {
      name.remove_prefix(std::string_view("functions.").size());
    }
    return std::string(name.substr(0, name.rfind(':')));
  }

  Took read_arguments() {
    for (size_t i = 0; i < pending().size(); ++i) {
      const CallReader::Status status = reader_->feed(pending()[i]);
      if (status == CallReader::Status::kMore) {
        continue;
      }
      const bool done = status == CallReader::Status::kDone;
      take(i + (done ? 1 : 0));
      add_arguments(reader_->take_arguments());
      if (done) {
        end_call();
        has_calls_ = true;
        at_ = At::kTail;
      }
      return done ? Took::kSome : Took::kBroken;
    }
    take(pending().size());
    add_arguments(reader_->take_arguments());
    return Took::kMore;
  }

  // The end of the fence and of the call.
  Took read_tail() {
    take_spaces();
    if (pending().starts_with("```")) {
      take(3);
      return Took::kSome;
    }
    const Took ended = take_marker(markers_.end_call);
    if (ended == Took::kSome) {
      at_ = At::kCall;
    }
    return ended == Took::kBroken && std::string_view("```").starts_with(pending()) ? Took::kMore
                                                                                    : ended;
  }

  bool is_kimi_;
  SectionMarkers markers_;
  At at_ = At::kOpening;
  std::string head_;
  std::optional<CallReader> reader_;
  bool has_calls_ = false;
};

// Calls between <tool_call> and </tool_call> whose arguments are parameters in tags, one after the other. Qwen3-Coder:
//   <function=NAME> <parameter=KEY> value </parameter> ... </function>
// GLM-4.5:
//   NAME <arg_key>KEY</arg_key> <arg_value>value</arg_value> ...
class TaggedParameters final : public MarkedCalls {
 public:
  explicit TaggedParameters(ChatParserOptions options)
      : MarkedCalls(std::move(options)), is_glm_(this->options().format == ToolFormat::kGlm) {}

 private:
  enum class At { kOpening, kName, kParameter, kTail };

  static constexpr std::string_view kFunction = "<function=";
  static constexpr std::string_view kEndFunction = "</function>";
  static constexpr std::string_view kKey = "<arg_key>";

  size_t find_opening(std::string_view text, size_t& partial) const override {
    partial = partial_marker(text, marker::kHermesCall);
    size_t at = text.find(marker::kHermesCall);
    if (!is_glm_) {  // the model may leave out the tag around a function
      at = std::min(at, text.find(kFunction));
      partial = std::max(partial, partial_marker(text, kFunction));
    }
    return at;
  }

  Took read() override {
    switch (at_) {
      case At::kOpening:
        begin_call();
        at_ = At::kName;
        if (pending().starts_with(marker::kHermesCall)) {
          take(marker::kHermesCall.size());
        }
        return Took::kSome;
      case At::kName:
        return is_glm_ ? read_glm_name() : read_function();
      case At::kParameter:
        return read_parameter();
      case At::kTail:
        return read_tail();
    }
    return Took::kBroken;
  }

  Took show(std::string_view name) {
    if (name.empty() || name.find_first_of("<>\n\r\t \"{}") != std::string_view::npos) {
      return Took::kBroken;
    }
    name_ = name;
    is_first_ = true;
    at_ = At::kParameter;
    show_call(name_);
    return Took::kSome;
  }

  Took read_function() {
    take_spaces();
    const std::string_view text = pending();
    if (!text.starts_with(kFunction)) {
      return kFunction.starts_with(text) ? Took::kMore : Took::kBroken;
    }
    const size_t end = text.find_first_of(">\n", kFunction.size());
    if (end == std::string_view::npos) {
      return Took::kMore;
    }
    const std::string name(text.substr(kFunction.size(), end - kFunction.size()));
    if (text[end] != '>') {
      return Took::kBroken;
    }
    take(end + 1);
    return show(name);
  }

  // The name ends where a tag begins.
  Took read_glm_name() {
    take_spaces();
    const size_t end = pending().find('<');
    if (end == std::string_view::npos) {
      return pending().find_first_of("{\"") == std::string_view::npos ? Took::kMore : Took::kBroken;
    }
    const std::string name(trimmed(pending().substr(0, end)));
    // What follows must be a whole tag, so that a text with a '<' is not taken for a call.
    const std::string_view rest = pending().substr(end);
    for (const std::string_view tag : {kKey, marker::kEndHermesCall}) {
      if (rest.starts_with(tag)) {
        take(end);
        return show(name);
      }
    }
    const bool may_be = kKey.starts_with(rest) || marker::kEndHermesCall.starts_with(rest);
    return may_be ? Took::kMore : Took::kBroken;
  }

  Took read_parameter() {
    take_spaces();
    const std::string_view end = is_glm_ ? marker::kEndHermesCall : kEndFunction;
    const Took ended = take_marker(end);
    if (ended == Took::kSome) {
      add_arguments(is_first_ ? "{}" : "}");
      end_call();
      at_ = is_glm_ ? At::kOpening : At::kTail;
      return is_glm_ ? Took::kEnd : Took::kSome;
    }
    const Took read = is_glm_ ? read_pair("<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>")
                              : read_pair("<parameter=", ">", "", "</parameter>");
    return ended == Took::kMore ? Took::kMore : read;
  }

  // A parameter is taken when it is complete.
  Took read_pair(std::string_view before_key,
                 std::string_view after_key,
                 std::string_view before_value,
                 std::string_view after_value) {
    const std::string_view text = pending();
    if (!text.starts_with(before_key)) {
      return before_key.starts_with(text) ? Took::kMore : Took::kBroken;
    }
    const size_t key_end = text.find(after_key, before_key.size());
    if (key_end == std::string_view::npos) {
      return Took::kMore;
    }
    size_t at = key_end + after_key.size();
    if (!before_value.empty()) {
      at += first_visible(text.substr(at));
      const std::string_view rest = text.substr(at);
      if (!rest.starts_with(before_value)) {
        return before_value.starts_with(rest) ? Took::kMore : Took::kBroken;
      }
      at += before_value.size();
    }
    const size_t end = text.find(after_value, at);
    if (end == std::string_view::npos) {
      return Took::kMore;
    }
    const std::string key(trimmed(text.substr(before_key.size(), key_end - before_key.size())));
    std::string_view value = text.substr(at, end - at);
    if (!is_glm_) {  // the template writes the value on lines of its own
      value.remove_prefix(value.starts_with('\n') ? 1 : 0);
      value.remove_suffix(value.ends_with('\n') ? 1 : 0);
    }
    add_arguments(
        fmt::format("{}{}: {}",
                    is_first_ ? "{" : ", ",
                    json_text_of(key),
                    written_value(value, options().parameters.find(name_, key), is_glm_)));
    is_first_ = false;
    take(end + after_value.size());
    return Took::kSome;
  }

  // </tool_call>, which may be missing.
  Took read_tail() {
    take_spaces();
    const Took ended = take_marker(marker::kEndHermesCall);
    if (ended == Took::kMore) {
      return Took::kMore;
    }
    at_ = At::kOpening;
    return Took::kEnd;
  }

  bool is_glm_;
  At at_ = At::kOpening;
  std::string name_;
  bool is_first_ = true;  // no parameter of the call has come
};

// A list of calls as Python writes them: [f(a=1, b='x'), g()]. It is the beginning of the text.
class PythonList final : public MarkedCalls {
 public:
  using MarkedCalls::MarkedCalls;

 private:
  static constexpr std::string_view kStart = "<|python_start|>";
  static constexpr std::string_view kEnd = "<|python_end|>";

  size_t find_opening(std::string_view text, size_t& partial) const override {
    const size_t visible = first_visible(text);
    const std::string_view rest = text.substr(visible);
    if (has_content()) {
      return std::string_view::npos;
    }
    if (rest.starts_with('[') || rest.starts_with(kStart)) {
      return visible;
    }
    partial = kStart.starts_with(rest) ? text.size() : 0;
    return std::string_view::npos;
  }

  Took read() override {
    take_spaces();
    if (is_over_) {
      if (take_marker(kEnd) == Took::kMore) {
        return Took::kMore;
      }
      in_list_ = is_over_ = has_calls_ = false;
      return Took::kEnd;
    }
    if (!in_list_) {
      const Took started = take_marker(kStart);
      if (started != Took::kBroken) {
        return started;
      }
      in_list_ = pending().starts_with('[');
      take(in_list_ ? 1 : 0);
      return in_list_ ? Took::kSome : Took::kBroken;
    }
    if (has_calls_ && (pending().starts_with(']') || pending().starts_with(','))) {
      is_over_ = pending().front() == ']';
      take(1);
      return Took::kSome;
    }
    return pending().empty() ? Took::kMore : read_call();
  }

  Took read_call() {
    begin_call();
    const PythonCall call = read_python_call(pending());
    if (call.status != PythonCall::Status::kDone) {
      return call.status == PythonCall::Status::kMore ? Took::kMore : Took::kBroken;
    }
    take(call.len);
    show_call(call.name);
    add_arguments(call.arguments);
    end_call();
    has_calls_ = true;
    return Took::kSome;
  }

  bool in_list_ = false;
  bool is_over_ = false;
  bool has_calls_ = false;
};

}  // namespace

bool has_marked_calls(ToolFormat format) {
  switch (format) {
    case ToolFormat::kQwen3Coder:
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kGlm:
    case ToolFormat::kPythonic:
    case ToolFormat::kKimi:
      return true;
    default:
      return false;
  }
}

std::unique_ptr<ChatParser> make_marked_calls(ChatParserOptions options) {
  switch (options.format) {
    case ToolFormat::kDeepSeekV3:
    case ToolFormat::kKimi:
      return std::make_unique<JsonSection>(std::move(options));
    case ToolFormat::kPythonic:
      return std::make_unique<PythonList>(std::move(options));
    default:
      return std::make_unique<TaggedParameters>(std::move(options));
  }
}

}  // namespace warprow
