// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/generation_body.h"
#include "text/text_model.h"

#include <string>

namespace warprow {

// A chat through the model's template, special tokens spelled out. With continue_final_message it ends
// where the last message's text does.
Result<std::string> render_chat(const ChatOptions& chat, const TextModel& text);

// How a model that thinks begins its answer to this chat's prompt. Templates may open a section for it, or
// close one at once so that it does not think; where the prompt ends with neither tag, the model decides. An
// answer that goes on with the last message is in a section where that message has left one open.
Thinking thinking_behind(const ChatOptions& chat, const std::string& prompt);

}  // namespace warprow
