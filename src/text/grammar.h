// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/error.h"
#include "base/ids.h"
#include "text/thinking.h"

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

struct wr_grammar;
struct wr_grammar_compiler;
struct wr_matcher;

namespace warprow {

class Tokenizer;

enum class GrammarKind : int8_t {
  kJsonSchema,     // a JSON schema; a schema that cannot be enforced is refused
  kJsonObject,     // any JSON object; the text is ignored
  kRegex,          // Rust's syntax; matches the whole text
  kLark,           // llguidance's variant of Lark, or EBNF if a line begins with `name ::=`
  kChoice,         // a JSON list of strings, see choice_text
  kStructuralTag,  // the JSON of a structural tag (structural_tag.h)
  kAny,  // any text, which is of use behind a reasoning section with a budget; the text is ignored
};

// The text of a kChoice grammar.
std::string choice_text(std::span<const std::string> choices);

// A compiled grammar. A copy shares the content.
// Thread: immutable; any threads at once.
class Grammar {
 public:
  Grammar(const Grammar& other);
  Grammar& operator=(const Grammar& other);
  Grammar(Grammar&&) noexcept = default;
  Grammar& operator=(Grammar&&) noexcept = default;
  ~Grammar() = default;

  // Of kAny. It needs no compiler.
  static Grammar any() { return Grammar(nullptr); }

  // The same grammar after a reasoning section, in which all tokens are allowed until the budget is spent; then
  // </think> is forced. The tags must outlive all matchers, unless there is no reasoning section.
  [[nodiscard]] Grammar behind(const ThinkingTags& tags,
                               Thinking thinking,
                               int64_t budget = kNoThinkingBudget) const;
  // The same grammar behind a text of another, which ends at the first place where nothing but an end may follow.
  [[nodiscard]] Grammar behind(const Grammar& preamble) const;

 private:
  friend class GrammarCompiler;
  friend class GrammarMatcher;
  struct Free {
    void operator()(const wr_grammar* g) const;
  };
  explicit Grammar(const wr_grammar* impl) : impl_(impl) {}

  static std::unique_ptr<const wr_grammar, Free> share(
      const std::unique_ptr<const wr_grammar, Free>& impl);

  std::unique_ptr<const wr_grammar, Free> impl_;      // null: any text
  std::unique_ptr<const wr_grammar, Free> preamble_;  // null if there is none
  ThinkingWatch thinking_;                            // at the beginning
};

// One request's position in a grammar, or in the reasoning section before it.
// Owns: its own copy of the parser's state, so that one request cannot affect another.
// Thread: one at a time, any.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(const Grammar& grammar);
  GrammarMatcher(GrammarMatcher&&) noexcept = default;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept = default;
  ~GrammarMatcher() = default;

  // A copy at the same position, to try tokens on. Changes to one do not affect the other. Both share caches, so one
  // thread at a time may use them.
  [[nodiscard]] GrammarMatcher fork() const;

  // The tokens that may come next: bit id % 32 of words[id / 32]. All words are written; words past the vocabulary
  // become 0. An end token is set exactly if the text may end here. Nothing is set if no token of the vocabulary fits.
  // Fails if the step exceeds the library's limits or max_step_ms. If nothing is set or the call fails, do not use the
  // matcher again. In a reasoning section all tokens are set, except those that is_free() describes.
  Result<void> fill_mask(std::span<uint32_t> words);

  // Whether a mask would allow all tokens. True for any text, and in a reasoning section, unless its budget is spent or
  // the next token may go past the end tag. Tokens that go past the end tag are forbidden, so that the grammar begins at
  // a token boundary.
  [[nodiscard]] bool is_free() const;

  // Advances by one token. Fails without a change if the grammar does not allow the token. After the end only end
  // tokens are allowed. If the call exceeds max_step_ms, do not use the matcher again.
  Result<void> accept(TokenId token);

  // Whether only an end token may follow (true after a failure too).
  [[nodiscard]] bool is_stopped() const;

 private:
  struct Free {
    void operator()(wr_matcher* m) const;
  };
  using Handle = std::unique_ptr<wr_matcher, Free>;
  GrammarMatcher(Handle impl, Handle preamble, const ThinkingWatch& thinking)
      : impl_(std::move(impl)), preamble_(std::move(preamble)), thinking_(thinking) {}

  static Handle begin(const wr_grammar* grammar);
  static Handle fork_of(const Handle& matcher);
  // The matcher that gets the next token outside of a reasoning section; null: any token may come.
  [[nodiscard]] wr_matcher* current() const;

  Handle impl_;  // does not get the tokens of the reasoning section or the preamble; null: any text
  Handle preamble_;  // null behind it
  ThinkingWatch thinking_;
};

struct GrammarOptions {
  std::size_t max_json_bytes = 1 << 20;   // of a JSON schema
  std::size_t max_text_bytes = 64 << 10;  // of any other grammar; these need far more memory
  // To compile a grammar: CPU time and memory of a worker process.
  uint32_t max_compile_ms = 1000;
  uint32_t max_compile_mb = 256;
  uint32_t max_kept_mb = 32;   // of a compiled grammar; each request that uses it has a copy
  uint32_t max_step_ms = 500;  // CPU time to take a token or fill a mask
  // The cache's limits: the number of grammars, and the total bytes of their texts.
  std::size_t cached_grammars = 64;
  std::size_t cached_bytes = 1 << 20;
};

// Compiles grammars for one vocabulary: first in a worker process under limits, then in this process. A grammar that
// exceeds a limit ends only its worker process.
// Owns: the trie of the vocabulary's bytes; the most recently used grammars; the worker process.
// Thread: compile from any threads at once. It may take twice max_compile_ms, so do not call it on the engine's thread.
class GrammarCompiler {
 public:
  // eos: the tokens that may end a text; they never match as text. Special tokens match only by name, where a Lark
  // grammar has <name>. The tokenizer need not outlive the compiler.
  static Result<GrammarCompiler> make(const Tokenizer& tokenizer,
                                      std::span<const TokenId> eos,
                                      const GrammarOptions& options = {});

  GrammarCompiler(GrammarCompiler&&) noexcept;
  GrammarCompiler& operator=(GrammarCompiler&&) noexcept;
  ~GrammarCompiler();

  // kInvalidArgument with the library's message, which begins "at line(column):" if the position is known, or with the
  // limit that the grammar exceeds. kBusy if no worker process is free.
  Result<Grammar> compile(GrammarKind kind, std::string_view text);

  // The number of compile calls that the cache answered.
  [[nodiscard]] int64_t cache_hits() const;

 private:
  struct Impl;
  Result<Grammar> compile_structural_tag(std::string_view text);
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace warprow
