// SPDX-License-Identifier: Apache-2.0
#include "server/chat/counted_parser.h"

#include <utility>

namespace warprow {
namespace {

class CountedParser final : public ChatParser {
 public:
  CountedParser(std::unique_ptr<ChatParser> parser, bool streams, CountToolCalls count)
      : parser_(std::move(parser)), streams_(streams), count_(std::move(count)) {}

  ChatPiece push(std::string_view text) override {
    ChatPiece piece = parser_->push(text);
    found_ = found_ || !piece.calls.empty();
    if (streams_) {
      count_(!piece.calls.empty());
    }
    return piece;
  }

  ChatPiece finish() override {
    ChatPiece piece = parser_->finish();
    const bool finds = !piece.calls.empty();
    if (!streams_ || (finds && !found_)) {
      count_(finds || found_);
    }
    return piece;
  }

  [[nodiscard]] bool failed() const override { return parser_->failed(); }
  [[nodiscard]] size_t body_at() const override { return parser_->body_at(); }

 private:
  std::unique_ptr<ChatParser> parser_;
  bool streams_;
  CountToolCalls count_;
  bool found_ = false;
};

}  // namespace

std::unique_ptr<ChatParser> count_tool_calls(std::unique_ptr<ChatParser> parser,
                                             bool streams,
                                             CountToolCalls count) {
  return std::make_unique<CountedParser>(std::move(parser), streams, std::move(count));
}

}  // namespace warprow
