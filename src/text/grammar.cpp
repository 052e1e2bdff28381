// SPDX-License-Identifier: Apache-2.0
#include "text/grammar.h"

#include "base/check.h"
#include "text/helper_entry.h"
#include "text/structural_tag.h"
#include "text/textkit_call.h"
#include "text/tokenizer.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

int code_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return WR_GRAMMAR_JSON_SCHEMA;
    case GrammarKind::kJsonObject:
      return WR_GRAMMAR_JSON_OBJECT;
    case GrammarKind::kRegex:
      return WR_GRAMMAR_REGEX;
    case GrammarKind::kLark:
      return WR_GRAMMAR_LARK;
    case GrammarKind::kChoice:
      return WR_GRAMMAR_CHOICE;
    case GrammarKind::kStructuralTag:
    case GrammarKind::kAny:
      break;  // the text library does not know them
  }
  return -1;
}

std::string_view field_of(GrammarKind kind) {
  switch (kind) {
    case GrammarKind::kJsonSchema:
      return "JSON schema";
    case GrammarKind::kJsonObject:
      return "JSON object";
    case GrammarKind::kRegex:
      return "regex";
    case GrammarKind::kLark:
      return "grammar";
    case GrammarKind::kChoice:
      return "choice";
    case GrammarKind::kStructuralTag:
      return "structural tag";
    case GrammarKind::kAny:
      break;
  }
  return "";
}

// The most recently used grammars, newest first.
class GrammarCache {
 public:
  GrammarCache(std::size_t max_grammars, std::size_t max_bytes)
      : max_grammars_(max_grammars), max_bytes_(max_bytes) {}

  std::optional<Grammar> find(GrammarKind kind, std::string_view text) {
    const std::lock_guard lock(mutex_);
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->kind == kind && it->text == text) {
        entries_.splice(entries_.begin(), entries_, it);
        ++hits_;
        return it->grammar;
      }
    }
    return std::nullopt;
  }

  void add(GrammarKind kind, std::string_view text, const Grammar& grammar) {
    const std::lock_guard lock(mutex_);
    entries_.push_front({kind, std::string(text), grammar});
    bytes_ += text.size();
    while (!entries_.empty() && (entries_.size() > max_grammars_ || bytes_ > max_bytes_)) {
      bytes_ -= entries_.back().text.size();
      entries_.pop_back();
    }
  }

  [[nodiscard]] int64_t hits() const {
    const std::lock_guard lock(mutex_);
    return hits_;
  }

 private:
  struct Entry {
    GrammarKind kind;
    std::string text;
    Grammar grammar;
  };

  std::size_t max_grammars_;
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  mutable std::mutex mutex_;
  std::list<Entry> entries_;
  int64_t hits_ = 0;
};

// A vocabulary may have more tokens than a mask.
void set_bit(std::span<uint32_t> words, TokenId token, bool allowed) {
  const auto bit = static_cast<size_t>(token);
  if (bit / 32 < words.size()) {
    const uint32_t mask = 1U << (bit % 32);
    words[bit / 32] = allowed ? words[bit / 32] | mask : words[bit / 32] & ~mask;
  }
}

Result<void> done_or_refused(int failed, const TextkitOwned& error) {
  if (failed != 0) {
    return fail(textkit_error(failed), error.str());
  }
  return {};
}

}  // namespace

std::string choice_text(std::span<const std::string> choices) {
  using nlohmann::json;
  return json(std::vector<std::string>(choices.begin(), choices.end()))
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

void Grammar::Free::operator()(const wr_grammar* g) const { wr_grammar_free(g); }

std::unique_ptr<const wr_grammar, Grammar::Free> Grammar::share(
    const std::unique_ptr<const wr_grammar, Free>& impl) {
  return std::unique_ptr<const wr_grammar, Free>(impl ? wr_grammar_share(impl.get()) : nullptr);
}

Grammar::Grammar(const Grammar& other)
    : impl_(share(other.impl_)), preamble_(share(other.preamble_)), thinking_(other.thinking_) {}

Grammar& Grammar::operator=(const Grammar& other) {
  impl_ = share(other.impl_);
  preamble_ = share(other.preamble_);
  thinking_ = other.thinking_;
  return *this;
}

Grammar Grammar::behind(const ThinkingTags& tags, Thinking thinking, int64_t budget) const {
  Grammar grammar = *this;
  grammar.thinking_ = ThinkingWatch(tags, thinking, budget);
  return grammar;
}

Grammar Grammar::behind(const Grammar& preamble) const {
  Grammar grammar = *this;
  grammar.preamble_ = share(preamble.impl_);
  return grammar;
}

void GrammarMatcher::Free::operator()(wr_matcher* m) const { wr_matcher_free(m); }

GrammarMatcher::Handle GrammarMatcher::begin(const wr_grammar* grammar) {
  wr_matcher* impl = nullptr;
  TextkitOwned error;
  const int failed = grammar == nullptr ? 0 : wr_matcher_new(grammar, &impl, error.out());
  WR_CHECK(failed == 0, "{}", error.text());
  return Handle(impl);
}

GrammarMatcher::Handle GrammarMatcher::fork_of(const Handle& matcher) {
  wr_matcher* impl = nullptr;
  TextkitOwned error;
  const int failed = matcher ? wr_matcher_fork(matcher.get(), &impl, error.out()) : 0;
  WR_CHECK(failed == 0, "{}", error.text());
  return Handle(impl);
}

GrammarMatcher::GrammarMatcher(const Grammar& grammar)
    : impl_(begin(grammar.impl_.get())),
      preamble_(begin(grammar.preamble_.get())),
      thinking_(grammar.thinking_) {}

GrammarMatcher GrammarMatcher::fork() const {
  return {fork_of(impl_), fork_of(preamble_), thinking_};
}

wr_matcher* GrammarMatcher::current() const { return preamble_ ? preamble_.get() : impl_.get(); }

Result<void> GrammarMatcher::fill_mask(std::span<uint32_t> words) {
  if (const std::span<const TokenId> closing = thinking_.closing(); !closing.empty()) {
    std::ranges::fill(words, 0U);
    for (const TokenId token : closing) {
      set_bit(words, token, true);
    }
    return {};
  }
  if (thinking_.is_inside() || current() == nullptr) {
    std::ranges::fill(words, ~0U);
    for (const TokenId token : thinking_.forbidden()) {
      set_bit(words, token, false);
    }
    return {};
  }
  TextkitOwned error;
  const int failed = wr_matcher_fill_mask(current(), words.data(), words.size(), error.out());
  if (const std::optional<TokenId> opening = thinking_.opening(); opening && failed == 0) {
    set_bit(words, *opening, true);
  }
  return done_or_refused(failed, error);
}

bool GrammarMatcher::is_free() const {
  if (!thinking_.is_inside()) {
    return current() == nullptr;
  }
  return thinking_.forbidden().empty() && thinking_.closing().empty();
}

Result<void> GrammarMatcher::accept(TokenId token) {
  ThinkingWatch next = thinking_;
  Result<void> taken;
  if (!next.take(token) && current() != nullptr) {
    TextkitOwned error;
    taken = done_or_refused(wr_matcher_accept(current(), token, error.out()), error);
    if (taken && preamble_ && wr_matcher_is_stopped(preamble_.get()) != 0) {
      preamble_.reset();
    }
  }
  thinking_ = taken ? next : thinking_;
  return taken;
}

bool GrammarMatcher::is_stopped() const {
  return !thinking_.is_inside() && current() != nullptr && wr_matcher_is_stopped(current()) != 0;
}

struct GrammarCompiler::Impl {
  struct Free {
    void operator()(wr_grammar_compiler* c) const { wr_grammar_compiler_free(c); }
  };

  Impl(wr_grammar_compiler* made, const Tokenizer& tokenizer, const GrammarOptions& given)
      : compiler(made),
        specials(tokenizer),
        options(given),
        cache(given.cached_grammars, given.cached_bytes) {}

  std::unique_ptr<wr_grammar_compiler, Free> compiler;
  SpecialTokens specials;
  GrammarOptions options;
  GrammarCache cache;
};

GrammarCompiler::GrammarCompiler(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GrammarCompiler::GrammarCompiler(GrammarCompiler&&) noexcept = default;
GrammarCompiler& GrammarCompiler::operator=(GrammarCompiler&&) noexcept = default;
GrammarCompiler::~GrammarCompiler() = default;

Result<GrammarCompiler> GrammarCompiler::make(const Tokenizer& tokenizer,
                                              std::span<const TokenId> eos,
                                              const GrammarOptions& options) {
  link_helper_entry();
  wr_grammar_compiler* impl = nullptr;
  TextkitOwned error;
  const wr_grammar_limits limits = {
      options.max_compile_ms, options.max_compile_mb, options.max_kept_mb, options.max_step_ms};
  const int failed = wr_grammar_compiler_new(
      tokenizer.handle(), eos.data(), eos.size(), limits, &impl, error.out());
  if (failed != 0) {
    return fail(ErrorCode::kUnsupported, fmt::format("structured output: {}", error.text()));
  }
  return GrammarCompiler(std::make_unique<Impl>(impl, tokenizer, options));
}

Result<Grammar> GrammarCompiler::compile(GrammarKind kind, std::string_view text) {
  if (kind == GrammarKind::kAny) {
    return Grammar::any();
  }
  if (kind == GrammarKind::kStructuralTag) {
    return compile_structural_tag(text);
  }
  if (kind == GrammarKind::kJsonObject) {
    text = {};
  }
  const GrammarOptions& options = impl_->options;
  const std::size_t limit =
      kind == GrammarKind::kJsonSchema ? options.max_json_bytes : options.max_text_bytes;
  if (text.size() > limit) {
    return fail(
        ErrorCode::kInvalidArgument,
        fmt::format("{}: {} bytes; at most {} are taken", field_of(kind), text.size(), limit));
  }
  if (auto cached = impl_->cache.find(kind, text)) {
    return *std::move(cached);
  }
  const wr_grammar* made = nullptr;
  TextkitOwned error;
  const int failed = wr_grammar_compile(
      impl_->compiler.get(), code_of(kind), to_textkit(text), &made, error.out());
  if (failed != 0) {
    return fail(textkit_error(failed), fmt::format("{}: {}", field_of(kind), error.text()));
  }
  Grammar grammar(made);
  impl_->cache.add(kind, text, grammar);
  return grammar;
}

Result<Grammar> GrammarCompiler::compile_structural_tag(std::string_view text) {
  const std::string_view field = field_of(GrammarKind::kStructuralTag);
  if (text.size() > impl_->options.max_json_bytes) {
    return fail(ErrorCode::kInvalidArgument,
                fmt::format("{}: {} bytes; at most {} are taken",
                            field,
                            text.size(),
                            impl_->options.max_json_bytes));
  }
  const Result<std::string> lark = structural_tag_lark(text, impl_->specials);
  if (!lark) {
    return fail(lark.error().code, fmt::format("{}: {}", field, lark.error().message));
  }
  return compile(GrammarKind::kLark, *lark).map_error([field](const Error& error) {
    return Error{error.code, fmt::format("{}, as a {}", field, error.message)};
  });
}

int64_t GrammarCompiler::cache_hits() const { return impl_->cache.hits(); }

}  // namespace warprow
