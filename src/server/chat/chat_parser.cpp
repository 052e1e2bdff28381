// SPDX-License-Identifier: Apache-2.0
#include "server/chat/chat_parser.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace warprow {

void ChatPiece::append(ChatPiece more) {
  content += more.content;
  reasoning += more.reasoning;
  calls.insert(calls.end(),
               std::make_move_iterator(more.calls.begin()),
               std::make_move_iterator(more.calls.end()));
}

ChatPiece parse_whole(ChatParser& parser, std::string_view text, bool cut_off) {
  ChatPiece piece = parser.push(text);
  piece.append(parser.finish());
  if (parser.failed() && !cut_off && !piece.calls.empty()) {
    std::string_view body = text.substr(parser.body_at());
    if (parser.body_at() > 0) {
      body.remove_prefix(std::min(body.find_first_not_of(" \t\r\n"), body.size()));
    }
    piece.content = body;
    piece.calls.clear();
  }
  return piece;
}

}  // namespace warprow
