// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/grammar.h"

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace warprow {

// The grammar that a request's answer must match, not compiled yet.
struct StructuredOutput {
  GrammarKind kind = GrammarKind::kJsonObject;
  std::string text;                               // as GrammarCompiler::compile takes it
  std::string_view field = "structured_outputs";  // the request's field, for messages
  Thinking thinking = Thinking::kNone;            // whether a reasoning section may precede it
  int64_t thinking_budget = kNoThinkingBudget;    // tokens after which that section must end
  std::string preamble{};                         // Lark of what precedes it; empty: nothing

  // Whether there is something to compile, which takes time.
  [[nodiscard]] bool has_grammar() const { return kind != GrammarKind::kAny; }
  bool operator==(const StructuredOutput&) const = default;
};

// Reads the two fields of a request's JSON object that set one, with vLLM's and OpenAI's names:
//   structured_outputs  an object with one of json (a schema, or its text), json_object (true),
//                       regex, grammar, choice (a list of texts), structural_tag (an object, or its text)
//   response_format     {"type": "text" | "json_object"} or
//                       {"type": "json_schema", "json_schema": {"schema": {...}}} or
//                       a structural tag (structural_tag.h)
// Takes the request's text instead of a parsed value, because the model must write a schema's properties in the order
// of that text. nullopt if both fields are absent, null or ask for plain text. kInvalidArgument names the field and
// what it must be. kUnsupported names an option that vLLM has and this engine does not. Both fields at once are
// refused.
Result<std::optional<StructuredOutput>> read_structured_output(std::string_view request);

}  // namespace warprow
