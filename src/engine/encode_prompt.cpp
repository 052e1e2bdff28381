// SPDX-License-Identifier: Apache-2.0
#include "engine/encode_prompt.h"

#include "text/chat_prompt.h"

#include <string>
#include <utility>
#include <variant>

namespace warprow {

Result<std::vector<TokenId>> encode_prompt(const GenerationRequest& request,
                                           const TextModel& text) {
  if (const auto* ids = std::get_if<std::vector<TokenId>>(&request.prompt)) {
    return *ids;
  }
  if (const auto* prompt = std::get_if<std::string>(&request.prompt)) {
    return text.tokenizer.encode(*prompt, true);
  }
  ChatRequest chat;
  for (const ChatMessage& message : std::get<std::vector<ChatMessage>>(request.prompt)) {
    chat.messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  if (chat.messages.empty()) {
    return fail(ErrorCode::kInvalidArgument, "messages: 0 messages, must be 1 or more");
  }
  Result<std::string> rendered = render_chat(chat, text);
  if (!rendered) {
    return tl::unexpected(std::move(rendered).error());
  }
  return text.tokenizer.encode(*rendered, false);
}

}  // namespace warprow
