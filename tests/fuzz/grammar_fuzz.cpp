// SPDX-License-Identifier: Apache-2.0
// libFuzzer target: every grammar is compiled or refused within its limits, masks agree with accepted tokens, and a
// complete answer to a JSON schema is JSON.
#include "text/grammar.h"

#include "base/check.h"
#include "tests/fuzz/extra_counters.h"
#include "tests/fuzz/sections.h"
#include "text/byte_text.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace warprow {
namespace {

constexpr TokenId kEos = 0xff;  // a byte that no text contains
constexpr int kNumBytes = 256;
constexpr int kMaxSteps = 48;
constexpr GrammarOptions kOptions = {.max_json_bytes = 16 << 10,
                                     .max_text_bytes = 16 << 10,
                                     .max_compile_ms = 300,
                                     .max_compile_mb = 128,
                                     .max_kept_mb = 16,
                                     .max_step_ms = 100,
                                     .cached_grammars = 1};
// The factor by which a limit may be exceeded. A thread checks it a few times a second, and sanitizers slow everything
// down.
constexpr double kMoreSeconds = 2;
constexpr std::string_view kWords[] = {"type",
                                       "object",
                                       "array",
                                       "string",
                                       "integer",
                                       "number",
                                       "boolean",
                                       "null",
                                       "properties",
                                       "required",
                                       "additionalProperties",
                                       "patternProperties",
                                       "items",
                                       "prefixItems",
                                       "minItems",
                                       "maxItems",
                                       "uniqueItems",
                                       "enum",
                                       "const",
                                       "anyOf",
                                       "oneOf",
                                       "allOf",
                                       "not",
                                       "if",
                                       "then",
                                       "else",
                                       "$ref",
                                       "$defs",
                                       "definitions",
                                       "pattern",
                                       "format",
                                       "date",
                                       "time",
                                       "datetime",
                                       "uuid",
                                       "ipv",
                                       "email",
                                       "uri",
                                       "minLength",
                                       "maxLength",
                                       "minimum",
                                       "maximum",
                                       "exclusiveMinimum",
                                       "exclusiveMaximum",
                                       "multipleOf",
                                       "x",
                                       "guidance",
                                       "whitespace_flexible",
                                       "whitespace_pattern",
                                       "item_separator",
                                       "key_separator",
                                       "coerce_one_of",
                                       "lenient",
                                       "start",
                                       "import",
                                       "ignore",
                                       "json",
                                       "regex",
                                       "substring",
                                       "stop",
                                       "lazy",
                                       "max_tokens",
                                       "temperature",
                                       "capture",
                                       "suffix",
                                       "override",
                                       "declare",
                                       "root"};
using Mask = std::array<uint32_t, kNumBytes / 32>;

// Processor time of this process, without its workers'.
class Limit {
 public:
  explicit Limit(uint32_t ms) : end_(now() + ms / 1e3 + kMoreSeconds) {}
  ~Limit() { WR_CHECK(now() < end_); }
  Limit(const Limit&) = delete;
  Limit& operator=(const Limit&) = delete;

 private:
  static double now() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
  double end_;
};

GrammarCompiler& compiler() {
  static GrammarCompiler made = [] {
    const auto text = value_or_throw(make_byte_text());
    return value_or_throw(GrammarCompiler::make(text->tokenizer, {{kEos}}, kOptions));
  }();
  return made;
}

void check_error(const Error& error) {
  WR_CHECK(error.code == ErrorCode::kInvalidArgument, "{}", error.message);
  WR_CHECK(!error.message.empty());
  count_error(error.message);
}

std::vector<TokenId> allowed(const Mask& mask) {
  std::vector<TokenId> out;
  for (TokenId id = 0; id < kNumBytes; ++id) {
    if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0) {
      out.push_back(id);
    }
  }
  return out;
}

bool fill(GrammarMatcher& matcher, Mask& mask) {
  const Limit limit(kOptions.max_step_ms);
  const Result<void> filled = matcher.fill_mask(mask);
  return filled.has_value();  // otherwise the library's own limits apply
}

bool accept(GrammarMatcher& matcher, TokenId token) {
  const Limit limit(kOptions.max_step_ms);
  return matcher.accept(token).has_value();
}

// A refused token must not change the matcher.
void check_refusal(GrammarMatcher& matcher, const Mask& mask, TokenId token) {
  GrammarMatcher fork = matcher.fork();
  WR_CHECK(!accept(fork, token));
  Mask after{};
  WR_CHECK(!fill(fork, after) || after == mask);
}

// Returns an answer whose tokens are picked by `choices`, or nullopt if it did not end.
std::optional<std::string> answer(const Grammar& grammar, std::string_view choices) {
  GrammarMatcher matcher(grammar);
  std::string out;
  for (int step = 0; step < kMaxSteps; ++step) {
    Mask mask{};
    if (!fill(matcher, mask)) {
      return std::nullopt;
    }
    const std::vector<TokenId> tokens = allowed(mask);
    if (tokens.empty()) {
      return std::nullopt;
    }
    const auto choice =
        choices.empty() ? size_t{0} : static_cast<uint8_t>(choices[step % choices.size()]);
    if (const auto other = static_cast<TokenId>(choice);
        (mask[choice / 32] >> (choice % 32) & 1U) == 0) {
      check_refusal(matcher, mask, other);
    }
    const TokenId token = tokens[choice % tokens.size()];
    if (!accept(matcher, token)) {
      return std::nullopt;
    }
    if (token == kEos) {
      WR_CHECK(matcher.is_stopped());
      return out;
    }
    out += static_cast<char>(token);
  }
  return std::nullopt;
}

void check(GrammarKind kind, std::string_view text, std::string_view choices) {
  const Result<Grammar> grammar = [&] {
    const Limit limit(kOptions.max_compile_ms);
    return compiler().compile(kind, text);
  }();
  if (!grammar) {
    check_error(grammar.error());
    return;
  }
  count_words(text, kWords);
  const std::optional<std::string> got = answer(*grammar, choices);
  if (got && (kind == GrammarKind::kJsonSchema || kind == GrammarKind::kJsonObject)) {
    WR_CHECK(nlohmann::json::accept(*got), "{}", *got);
  }
}

}  // namespace
}  // namespace warprow

// The input is the kind as a digit and the grammar, optionally followed by the bytes that pick tokens.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) {
    return 0;
  }
  constexpr int kNumKinds = static_cast<int>(warprow::GrammarKind::kChoice) + 1;
  const auto kind = static_cast<warprow::GrammarKind>((*data - '0' + 255) % kNumKinds);
  std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string_view text = warprow::take_section(rest);
  warprow::check(kind, text, rest);
  return 0;
}
