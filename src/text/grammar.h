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
  kJsonSchema,  // a JSON schema; what cannot be enforced is refused
  kJsonObject,  // any JSON object; the text is ignored
  kRegex,       // Rust's syntax, matched whole
  kLark,        // llguidance's variant of Lark, or EBNF if a line begins with `name ::=`
  kChoice,      // a JSON list of strings, see choice_text
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

  // The same language behind a thinking section, in which any token may come. The tags must outlive all matchers,
  // unless there is no section.
  [[nodiscard]] Grammar behind(const ThinkingTags& tags, Thinking thinking) const;

 private:
  friend class GrammarCompiler;
  friend class GrammarMatcher;
  struct Free {
    void operator()(const wr_grammar* g) const;
  };
  explicit Grammar(const wr_grammar* impl) : impl_(impl) {}

  std::unique_ptr<const wr_grammar, Free> impl_;
  ThinkingWatch thinking_;  // at the beginning
};

// One request's place in a grammar, or in the thinking section before it.
// Owns: its own copy of the parser's state, so that nothing one request does can reach another.
// Thread: one at a time, any.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(const Grammar& grammar);
  GrammarMatcher(GrammarMatcher&&) noexcept = default;
  GrammarMatcher& operator=(GrammarMatcher&&) noexcept = default;
  ~GrammarMatcher() = default;

  // Another at the same place, to try tokens on; what is done to one the other does not see. Both
  // share caches, so they belong to one thread at a time.
  [[nodiscard]] GrammarMatcher fork() const;

  // Which tokens may come next: bit id % 32 of words[id / 32]. All words are written; those past the
  // vocabulary become 0. An end token is set exactly if the text may end here; nothing is set if no
  // token of the vocabulary spells what may come next. Fails when the step exceeds the library's
  // limits, or max_step_ms. In these two cases the matcher is of no more use. In a thinking section all
  // is set but for what is_free() tells of.
  Result<void> fill_mask(std::span<uint32_t> words);

  // Whether a mask would forbid nothing: in a thinking section, unless the next token may go past its end tag.
  // Such tokens are forbidden, so that the grammar begins with a token.
  [[nodiscard]] bool is_free() const;

  // Takes a token. Refuses one that the grammar does not allow, and stays as it was. After the end,
  // end tokens alone are taken. Of no more use after max_step_ms.
  Result<void> accept(TokenId token);

  // Whether nothing but an end token may follow (also after a failure).
  [[nodiscard]] bool is_stopped() const;

 private:
  struct Free {
    void operator()(wr_matcher* m) const;
  };
  GrammarMatcher(wr_matcher* impl, const ThinkingWatch& thinking)
      : impl_(impl), thinking_(thinking) {}

  std::unique_ptr<wr_matcher, Free> impl_;  // does not see the thinking section
  ThinkingWatch thinking_;
};

struct GrammarOptions {
  std::size_t max_json_bytes = 1 << 20;   // of a JSON schema
  std::size_t max_text_bytes = 64 << 10;  // of any other grammar: they take more memory by far
  // To compile one: processor time and memory of a worker process.
  uint32_t max_compile_ms = 1000;
  uint32_t max_compile_mb = 256;
  uint32_t max_kept_mb = 32;   // of a compiled one; each request that uses it has a copy
  uint32_t max_step_ms = 500;  // of processor time, to take a token or fill a mask
  // The cache's limits: grammars, and the bytes of their texts together.
  std::size_t cached_grammars = 64;
  std::size_t cached_bytes = 1 << 20;
};

// Compiles grammars for one vocabulary: each in a worker process under limits first, then here. What breaks
// a limit there ends its worker alone.
// Owns: the trie of the vocabulary's bytes; the most recently used grammars; the helper process.
// Thread: compile from any threads at once. It may take max_compile_ms twice, so not on the engine's.
class GrammarCompiler {
 public:
  // eos: the tokens that may end a text; never taken as text. Special tokens are matched by name
  // only, where a Lark grammar asks for <name>. The tokenizer need not outlive the compiler.
  static Result<GrammarCompiler> make(const Tokenizer& tokenizer,
                                      std::span<const TokenId> eos,
                                      const GrammarOptions& options = {});

  GrammarCompiler(GrammarCompiler&&) noexcept;
  GrammarCompiler& operator=(GrammarCompiler&&) noexcept;
  ~GrammarCompiler();

  // kInvalidArgument with the library's message, which begins "at line(column):" where a position
  // is known, or with the limit that the grammar breaks; kBusy where no worker process is free.
  Result<Grammar> compile(GrammarKind kind, std::string_view text);

  // How many calls of compile were answered from the cache.
  [[nodiscard]] int64_t cache_hits() const;

 private:
  struct Impl;
  explicit GrammarCompiler(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace warprow
