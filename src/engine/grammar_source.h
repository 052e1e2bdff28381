// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "text/grammar.h"
#include "text/structured_output.h"
#include "text/text_model.h"

#include <mutex>
#include <optional>

namespace warprow {

// Compiles clients' grammars. The compiler is made for the first of them: it indexes the whole vocabulary.
//
// Owns: the compiler and, in it, the most recently used grammars; the thinking tags.
// Thread: any.
class GrammarSource {
 public:
  // text must outlive this, and this the matchers of grammars behind thinking.
  explicit GrammarSource(const TextModel& text) : text_(text) {}

  // kInvalidArgument with the requesting field and the library's message and position, or the limit; kBusy if no
  // worker process is free; kUnsupported if the vocabulary cannot be used for grammars.
  Result<Grammar> compile(const StructuredOutput& wanted);

 private:
  const TextModel& text_;
  std::once_flag made_;
  std::optional<Result<GrammarCompiler>> compiler_;
  std::optional<ThinkingTags> thinking_tags_;
};

}  // namespace warprow
