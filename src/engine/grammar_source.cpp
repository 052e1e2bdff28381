// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_source.h"

#include <fmt/format.h>

namespace warprow {

Result<GrammarCompiler>& GrammarSource::compiler() {
  std::call_once(made_,
                 [this] { compiler_.emplace(GrammarCompiler::make(text_.tokenizer, text_.eos)); });
  return *compiler_;
}

const ThinkingTags& GrammarSource::thinking_tags() {
  std::call_once(tagged_, [this] { thinking_tags_.emplace(text_.tokenizer); });
  return *thinking_tags_;
}

Result<Grammar> GrammarSource::compile(const StructuredOutput& wanted,
                                       GrammarKind kind,
                                       std::string_view text) {
  if (kind == GrammarKind::kAny) {
    return Grammar::any();
  }
  if (!compiler()) {
    return tl::unexpected(compiler().error());
  }
  return compiler()->compile(kind, text).map_error([&](const Error& error) {
    return Error{error.code, fmt::format("{}: {}", wanted.field, error.message)};
  });
}

Result<Grammar> GrammarSource::compile(const StructuredOutput& wanted) {
  Result<Grammar> grammar = compile(wanted, wanted.kind, wanted.text);
  if (!grammar) {
    return grammar;
  }
  if (!wanted.preamble.empty()) {
    return compile(wanted, GrammarKind::kLark, wanted.preamble).map([&](const Grammar& preamble) {
      return grammar->behind(preamble);
    });
  }
  if (wanted.thinking_budget != kNoThinkingBudget && !thinking_tags().can_close()) {
    return fail(
        ErrorCode::kUnsupported,
        fmt::format("thinking_token_budget: the vocabulary does not spell {}", kEndThinkTag));
  }
  return grammar->behind(thinking_tags(), wanted.thinking, wanted.thinking_budget);
}

}  // namespace warprow
