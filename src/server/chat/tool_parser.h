// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat/chat_parser.h"
#include "server/chat/tool_format.h"
#include "server/chat/written_value.h"

#include <memory>
#include <string>

namespace warprow {

struct ChatParserOptions {
  ToolFormat format = ToolFormat::kNone;
  std::string function{};  // with kNamed
  bool parallel = true;    // false: drop all calls after the first
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  bool begins_reasoning = false;  // the prompt has opened the reasoning section
  bool include_reasoning = true;  // false: drop the reasoning text
  std::string id_prefix{};        // of the calls' ids; unique
  ParameterKinds parameters{};    // of the tools; for formats that write values without quotes
  bool short_ids = false;         // nine letters and digits, as Mistral's templates require
};

std::unique_ptr<ChatParser> make_chat_parser(ChatParserOptions options);

}  // namespace warprow
