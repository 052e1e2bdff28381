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

// A part of a tool call. The first piece of a call has its id and name; the others continue the arguments.
struct ToolCallPiece {
  int32_t index = 0;
  std::string id{};
  std::string name{};
  std::string arguments{};  // JSON text
};

// A piece of the model's text, divided into content, reasoning and tool calls.
struct ChatPiece {
  std::string content{};
  std::string reasoning{};
  std::vector<ToolCallPiece> calls{};

  [[nodiscard]] bool empty() const { return content.empty() && reasoning.empty() && calls.empty(); }
  void append(ChatPiece more);
};

// Divides the streamed text of one choice into content, reasoning and tool calls. Holds text back while its kind is
// undecided.
class ChatParser {
 public:
  virtual ~ChatParser() = default;
  virtual ChatPiece push(std::string_view text) = 0;
  // The text that was held back. Call it once, at the end of the text.
  virtual ChatPiece finish() = 0;
  // Whether a text that began like a call was not a call, not JSON or not complete. Only for calls that no grammar
  // forces.
  [[nodiscard]] virtual bool failed() const = 0;
  // Where the text after the reasoning section begins, as a byte offset into all pushed text.
  [[nodiscard]] virtual size_t body_at() const = 0;
};

// Parses a whole text at once. If a call failed, all calls become content, since the client has seen none of them yet.
// Exception: with cut_off (the text ended early) the calls stay, and the last one may be incomplete.
ChatPiece parse_whole(ChatParser& parser, std::string_view text, bool cut_off);

// Makes the parser for one choice of an answer.
using MakeChatParser = std::function<std::unique_ptr<ChatParser>(size_t choice)>;

}  // namespace warprow
