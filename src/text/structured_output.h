// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/grammar.h"

#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// The language that a client wants its answer to be in: a grammar that is not compiled yet.
struct StructuredOutput {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;                               // as GrammarCompiler::compile takes it
  std::string_view field = "structured_outputs";  // that asked for it, for messages
  Thinking thinking = Thinking::kNone;            // what may stand before it
  bool operator==(const StructuredOutput&) const = default;
};

// Reads the two fields of a request's JSON object that ask for one, by vLLM's and OpenAI's names:
//   structured_outputs  an object with one of json (a schema, or its text), json_object (true),
//                       regex, grammar, choice (a list of texts)
//   response_format     {"type": "text" | "json_object"} or
//                       {"type": "json_schema", "json_schema": {"schema": {...}}}
// Takes the request's text and not a parsed value, since a schema's properties are written in the
// order in which they stand there. nullopt if neither field is present, or null, or asks for plain
// text. kInvalidArgument names the field and what it must be; kUnsupported names what vLLM knows
// and this engine does not. Both fields at once are refused.
Result<std::optional<StructuredOutput>> read_structured_output(std::string_view request);

}  // namespace warprow
