// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "server/endpoints/generation_body.h"
#include "text/structured_output.h"

#include <string>
#include <string_view>

namespace warprow {

// Where a prompt in gpt-oss's format ends and the answer's first header begins.
inline constexpr std::string_view kHarmonyTurn = "<|start|>assistant";

// What precedes a structured answer, as a Lark grammar: any messages of the channels analysis and commentary, and the
// header of the channel final.
std::string harmony_answer_preamble();

// The grammar that forces one call of a tool, behind any messages of reasoning: gpt-oss makes one call in a turn.
// kInvalidArgument names a function whose name is not of letters, digits, '_', '-' and '.'.
Result<StructuredOutput> harmony_tool_grammar(const ToolOptions& options);

}  // namespace warprow
