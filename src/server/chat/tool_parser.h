// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/chat_parser.h"
#include "server/chat/tool_format.h"

#include <memory>
#include <string>

namespace warprow {

struct ChatParserOptions {
  ToolFormat format = ToolFormat::kNone;
  std::string function{};         // with kNamed
  bool parallel = true;           // else calls after the first are left out
  bool reasoning = false;         // <think> is a section of its own
  bool begins_reasoning = false;  // the prompt has opened it already
  bool include_reasoning = true;  // else what it says is left out
  std::string id_prefix{};        // of calls' ids: unique
  bool short_ids = false;         // of nine letters and digits: Mistral's templates take no others
};

std::unique_ptr<ChatParser> make_chat_parser(ChatParserOptions options);

}  // namespace warprow
