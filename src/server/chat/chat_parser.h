// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace warprow {

// A part of a call. The first of each call has id and name, the others more of the arguments.
struct ToolCallPiece {
  int32_t index = 0;
  std::string id{};
  std::string name{};
  std::string arguments{};  // JSON text
};

// What a piece of a model's text means.
struct ChatPiece {
  std::string content{};
  std::string reasoning{};
  std::vector<ToolCallPiece> calls{};

  [[nodiscard]] bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  void append(ChatPiece more);
};

// Tells content, reasoning and tool calls apart in the text of one choice, as it comes. What may
// still become the one or the other is held back.
class ChatParser {
 public:
  virtual ~ChatParser() = default;
  virtual ChatPiece push(std::string_view text) = 0;
  // What was held back, once the text has ended.
  virtual ChatPiece finish() = 0;
  // Whether something that began as a call was none, was not JSON or had no end, though no grammar has
  // forced it.
  [[nodiscard]] virtual bool failed() const = 0;
  // Where the text behind the reasoning begins, in bytes of all that was pushed.
  [[nodiscard]] virtual size_t body_at() const = 0;
};

// A whole text at once. Where a call failed, all of them are content, since nothing has been given out
// yet; unless the text was cut off, whose last call is as much as there is of it.
ChatPiece parse_whole(ChatParser& parser, std::string_view text, bool cut_off);

// For a choice of an answer.
using MakeChatParser = std::function<std::unique_ptr<ChatParser>(size_t choice)>;

}  // namespace warprow
