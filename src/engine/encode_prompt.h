// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "engine/request.h"
#include "text/text_model.h"

#include <vector>

namespace warprow {

// The tokens of a request's prompt: token ids as they are, a text with the special tokens that the model's rules add, a
// chat as the model's template renders it. kInvalidArgument for a chat without messages; errors of render_chat.
Result<std::vector<TokenId>> encode_prompt(const GenerationRequest& request, const TextModel& text);

}  // namespace warprow
