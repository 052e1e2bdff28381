// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/tool_parser.h"

#include <memory>

namespace warprow {

// Whether make_marked_calls reads the format.
bool has_marked_calls(ToolFormat format);

// Divides a text without reasoning into content and calls, for formats whose markers are more than brackets of JSON:
// qwen3_coder, deepseek_v3, glm, pythonic, kimi.
std::unique_ptr<ChatParser> make_marked_calls(ChatParserOptions options);

}  // namespace warprow
