// SPDX-License-Identifier: Apache-2.0
#include "text/chat_prompt.h"

#include <string_view>

namespace warprow {
namespace {

// The text of the last message. With continue_final_message the prompt ends with this text.
std::string last_content(const OrderedJson& messages) {
  const OrderedJson& content = messages.back()["content"];
  const OrderedJson& text =
      content.is_array() && !content.empty() ? content.back()["text"] : content;
  return text.is_string() ? text.get<std::string>() : "";
}

std::string_view without_end_spaces(std::string_view text) {
  return text.substr(0, text.find_last_not_of(" \t\r\n") + 1);
}

}  // namespace

Result<std::string> render_chat(const ChatRequest& chat, const TextModel& text) {
  if (!chat.chat_template && !text.chat_template) {
    return tl::unexpected(text.chat_template.error());
  }
  Result<std::string> rendered = chat.chat_template
                                     ? ChatTemplate::render_own(chat, text.info.special_tokens)
                                     : text.chat_template->render(chat);
  if (!rendered || !chat.continue_final_message) {
    return rendered;
  }
  // A template may trim the content and close its turn. The prompt must end where the content ends.
  const std::string content = last_content(chat.messages);
  const std::string_view shown = without_end_spaces(content);
  const size_t at = rendered->rfind(shown);
  if (shown.empty() || at == std::string::npos) {
    return fail(ErrorCode::kInvalidArgument,
                "continue_final_message: the chat template does not show the last message's text");
  }
  const bool as_given = rendered->compare(at, content.size(), content) == 0;
  rendered->resize(at + (as_given ? content.size() : shown.size()));
  return rendered;
}

Thinking thinking_behind(const ChatRequest& chat, const std::string& prompt) {
  const std::string_view shown = without_end_spaces(prompt);
  if (shown.ends_with(kThinkTag)) {
    return Thinking::kOpen;
  }
  if (chat.continue_final_message) {
    const std::string content = last_content(chat.messages);
    const size_t opened = content.rfind(kThinkTag);
    const bool is_open =
        opened != std::string::npos && content.find(kEndThinkTag, opened) == std::string::npos;
    return is_open ? Thinking::kOpen : Thinking::kNone;
  }
  return shown.ends_with(kEndThinkTag) ? Thinking::kNone : Thinking::kMaybe;
}

}  // namespace warprow
