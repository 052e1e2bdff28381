// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/tool_parser.h"

#include <memory>

namespace warprow {

// Divides a text of gpt-oss, with its special tokens, into its messages:
//   <|channel|>CHANNEL<|message|> text <|end|> <|start|>assistant<|channel|> ...
// `analysis` is reasoning, a message to functions.NAME is a call of NAME, everything else is content. <|return|> and
// <|call|> end a message too. The recipient may stand before or behind the channel. A text without a header continues
// the last message of the prompt.
std::unique_ptr<ChatParser> make_harmony_parser(ChatParserOptions options);

}  // namespace warprow
