// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/generation_body.h"
#include "text/text_model.h"

#include <string>

namespace warprow {

// A chat through the model's template, special tokens spelled out. With continue_final_message it ends
// where the last message's text does.
Result<std::string> render_chat(const ChatWish& chat, const TextModel& text);

// Whether a prompt ends inside a <think> section, as some templates open it for the model.
bool opens_reasoning(const std::string& prompt);

}  // namespace warprow
