// SPDX-License-Identifier: Apache-2.0
#include "engine/grammar_source.h"

#include <fmt/format.h>

namespace warprow {

Result<Grammar> GrammarSource::compile(const StructuredOutput& wanted) {
  std::call_once(made_, [this] {
    compiler_.emplace(GrammarCompiler::make(text_.tokenizer, text_.eos));
    thinking_tags_.emplace(text_.tokenizer);
  });
  if (!*compiler_) {
    return tl::unexpected(compiler_->error());
  }
  Result<Grammar> grammar = (*compiler_)->compile(wanted.kind, wanted.text);
  if (!grammar) {
    return fail(grammar.error().code, fmt::format("{}: {}", wanted.field, grammar.error().message));
  }
  if (!wanted.preamble.empty()) {
    const Result<Grammar> preamble = (*compiler_)->compile(GrammarKind::kLark, wanted.preamble);
    if (!preamble) {
      return fail(preamble.error().code,
                  fmt::format("{}: {}", wanted.field, preamble.error().message));
    }
    return grammar->behind(*preamble);
  }
  return grammar->behind(*thinking_tags_, wanted.thinking);
}

}  // namespace warprow
