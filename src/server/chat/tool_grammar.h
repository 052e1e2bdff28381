// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/chat_body.h"
#include "text/structured_output.h"

namespace warprow {

// The grammar that makes every answer a call, for required and named choices.
StructuredOutput tool_grammar(const ToolOptions& options);

}  // namespace warprow
