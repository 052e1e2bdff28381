// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/chat_parser.h"

#include <memory>

namespace warprow {

// Divides a text into reasoning and content as Granite 3 writes them: <think> ... </think><response> ... </response>, or
// behind the sentences "Here is my thought process:" and "Here is my response:".
std::unique_ptr<ChatParser> make_granite_parser(bool include_reasoning);

}  // namespace warprow
