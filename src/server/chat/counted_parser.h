// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/chat_parser.h"

#include <functional>
#include <memory>

namespace warprow {

// Reports what a tool parser found. Of a whole answer: once, with its end. Of a streamed one: for each piece of text.
using CountToolCalls = std::function<void(bool found_call)>;
std::unique_ptr<ChatParser> count_tool_calls(std::unique_ptr<ChatParser> parser,
                                             bool streams,
                                             CountToolCalls count);

}  // namespace warprow
