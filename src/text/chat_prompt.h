// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/chat_template.h"
#include "text/text_model.h"
#include "text/thinking.h"

#include <string>

namespace warprow {

// Renders a chat with its own chat template, or with the model's; special tokens appear as text. With continue_final_message the prompt
// ends where the last message's text ends. kUnsupported if there is no usable template.
Result<std::string> render_chat(const ChatRequest& chat, const TextModel& text);

// How a reasoning model begins its answer to this prompt. The template may open a reasoning section, or open and close
// one to disable reasoning. If the prompt ends with neither tag, the model decides. An answer that continues the last
// message begins in a reasoning section if that message has left one open.
Thinking thinking_behind(const ChatRequest& chat, const std::string& prompt);

}  // namespace warprow
