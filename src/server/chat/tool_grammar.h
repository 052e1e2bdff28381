// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "server/endpoints/generation_body.h"
#include "text/structured_output.h"

namespace warprow {

// The grammar that forces the answer to be tool calls, for a required or named tool choice.
StructuredOutput tool_grammar(const ToolOptions& options);

}  // namespace warprow
