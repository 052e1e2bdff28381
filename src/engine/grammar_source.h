// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/grammar.h"
#include "text/structured_output.h"
#include "text/text_model.h"

#include <mutex>
#include <optional>
#include <string_view>

namespace warprow {

// Compiles clients' grammars. The compiler and the thinking tags are made for the first request that needs them: both
// look at the whole vocabulary.
//
// Owns: the compiler and, in it, the most recently used grammars; the thinking tags.
// Thread: any.
class GrammarSource {
 public:
  // text must outlive this, and this the matchers of grammars behind thinking.
  explicit GrammarSource(const TextModel& text) : text_(text) {}

  // kInvalidArgument with the requesting field and the library's message and position, or the limit; kBusy if no
  // worker process is free; kUnsupported if the vocabulary cannot be used for grammars, or not for a thinking budget.
  Result<Grammar> compile(const StructuredOutput& wanted);

 private:
  Result<GrammarCompiler>& compiler();
  const ThinkingTags& thinking_tags();
  // A part of what is wanted.
  Result<Grammar> compile(const StructuredOutput& wanted, GrammarKind kind, std::string_view text);

  const TextModel& text_;
  std::once_flag made_;
  std::optional<Result<GrammarCompiler>> compiler_;
  std::once_flag tagged_;
  std::optional<ThinkingTags> thinking_tags_;
};

}  // namespace warprow
