// SPDX-License-Identifier: Apache-2.0
#include "server/chat/granite_parser.h"

#include "server/chat/text_scan.h"
#include "server/chat/tool_format.h"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace warprow {
namespace {

constexpr std::string_view kOpenings[] = {
    marker::kThink, "Here is my thought process:", "Here's my thought process:"};
constexpr std::string_view kEndings[] = {
    marker::kEndThink, "Here is my response:", "Here's my response:"};
constexpr std::string_view kResponseTag[] = {"<response>"};
constexpr std::string_view kEndResponseTag[] = {"</response>"};

class GraniteParser final : public ChatParser {
 public:
  explicit GraniteParser(bool include_reasoning) : include_reasoning_(include_reasoning) {}

  ChatPiece push(std::string_view text) override {
    pending_ += text;
    num_pushed_ += text.size();
    ChatPiece out;
    while (step(out)) {
    }
    return out;
  }

  ChatPiece finish() override {
    finished_ = true;
    return push("");
  }

  [[nodiscard]] bool failed() const override { return false; }
  [[nodiscard]] size_t body_at() const override { return body_at_; }

 private:
  enum class Section { kStart, kReasoning, kBehind, kResponse, kContent };

  bool step(ChatPiece& out) {
    switch (section_) {
      case Section::kStart:
        return begin(kOpenings, Section::kReasoning, Section::kContent, false);
      case Section::kReasoning:
        return read(kEndings, Section::kBehind, include_reasoning_ ? &out.reasoning : nullptr);
      case Section::kBehind:
        return begin(kResponseTag, Section::kResponse, Section::kContent, true);
      case Section::kResponse:
        return read(kEndResponseTag, Section::kContent, &out.content);
      case Section::kContent:
        out.content += pending_;
        pending_.clear();
        break;
    }
    return false;
  }

  // Takes one of the markers behind white space, and the white space behind it. Without a marker white space stays,
  // unless it is dropped.
  bool begin(std::span<const std::string_view> markers,
             Section with,
             Section without,
             bool drops_spaces) {
    const size_t visible = first_visible(pending_);
    const std::string_view rest = std::string_view(pending_).substr(visible);
    bool may_be = false;
    for (const std::string_view marker : markers) {
      if (rest.starts_with(marker)) {
        pending_.erase(0, visible + marker.size());
        enter(with);
        return true;
      }
      may_be = may_be || marker.starts_with(rest);
    }
    if (may_be && !finished_) {
      return false;
    }
    pending_.erase(0, drops_spaces ? visible : 0);
    enter(without);
    return true;
  }

  void enter(Section section) {
    const bool was_reasoning = section_ == Section::kBehind;
    section_ = section;
    skip_spaces_ = section != Section::kContent;
    body_at_ = was_reasoning ? num_pushed_ - pending_.size() : body_at_;
  }

  // Gives the text up to one of the markers, without white space at both ends.
  bool read(std::span<const std::string_view> markers, Section next, std::string* target) {
    if (skip_spaces_) {
      pending_.erase(0, first_visible(pending_));
      skip_spaces_ = pending_.empty();
    }
    const std::string_view text = pending_;
    size_t at = std::string_view::npos;
    size_t partial = 0;
    std::string_view found;
    for (const std::string_view marker : markers) {
      if (const size_t begin = text.find(marker); begin < at) {
        at = begin;
        found = marker;
      }
      partial = std::max(partial, finished_ ? 0 : partial_marker(text, marker));
    }
    size_t sure = std::min(at, text.size() - (found.empty() ? partial : 0));
    if (!found.empty() || !finished_) {
      sure = text.substr(0, sure).find_last_not_of(kSpaces) + 1;
    }
    if (target != nullptr) {
      *target += text.substr(0, sure);
    }
    pending_.erase(0, found.empty() ? sure : at + found.size());
    if (!found.empty()) {
      section_ = next;
    }
    return !found.empty();
  }

  bool include_reasoning_;
  Section section_ = Section::kStart;
  std::string pending_;
  size_t num_pushed_ = 0;  // bytes
  size_t body_at_ = 0;
  bool skip_spaces_ = false;
  bool finished_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> make_granite_parser(bool include_reasoning) {
  return std::make_unique<GraniteParser>(include_reasoning);
}

}  // namespace warprow
