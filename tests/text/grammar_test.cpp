// SPDX-License-Identifier: Apache-2.0
// Grammars without a model. A walk picks random tokens among those that the mask allows, with a bias toward the end of
// the text. The result must be in the language.
#include "text/grammar.h"

#include "tests/text/grammar_test_support.h"
#include "text/byte_text.h"

#include <algorithm>
#include <bit>
#include <random>
#include <regex.h>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

// POSIX: gcc warns inside of std::regex when it builds with sanitizers.
bool matches(const std::string& text, const std::string& pattern) {
  regex_t compiled{};
  if (regcomp(&compiled, ("^(" + pattern + ")$").c_str(), REG_EXTENDED | REG_NOSUB) != 0) {
    ADD_FAILURE() << pattern;
    return false;
  }
  const bool matched = regexec(&compiled, text.c_str(), 0, nullptr, 0) == 0;
  regfree(&compiled);
  return matched;
}

using test::Mask;
using test::smollm2_compiler;

struct Walk {
  std::string text;
  bool ended = false;
  std::size_t tokens = 0;
};

// Picks a random token. While closing, it prefers a token that closes something, then the shortest token.
TokenId pick(const Tokenizer& tokenizer,
             const std::vector<TokenId>& allowed,
             bool closing,
             std::mt19937& rng) {
  TokenId best = allowed[rng() % allowed.size()];
  if (!closing) {
    return best;
  }
  for (const TokenId id : allowed) {
    const std::string_view bytes = tokenizer.token_bytes(id);
    if (bytes == "\"" || bytes == "}" || bytes == "]") {
      return id;
    }
    if (bytes.size() < tokenizer.token_bytes(best).size()) {
      best = id;
    }
  }
  return best;
}

Walk walk(const Tokenizer& tokenizer, TokenId eos, const Grammar& grammar, uint32_t seed) {
  constexpr std::size_t kMaxTokens = 400;
  constexpr std::size_t kFreeTokens = 30;
  std::mt19937 rng(seed);
  GrammarMatcher matcher(grammar);
  Mask mask(tokenizer.vocab_size());
  Walk result;
  while (!result.ended && result.tokens < kMaxTokens) {
    const auto filled = matcher.fill_mask(mask.words());
    if (!filled) {
      ADD_FAILURE() << filled.error().message << " after " << result.text;
      return result;
    }
    const std::vector<TokenId> allowed = mask.allowed();
    if (allowed.empty()) {
      ADD_FAILURE() << "nothing may follow " << result.text;
      return result;
    }
    const bool closing = result.tokens > kFreeTokens;
    const bool end = mask.allows(eos) && (closing || rng() % 4 == 0);
    const TokenId token = end ? eos : pick(tokenizer, allowed, closing, rng);
    const auto accepted = matcher.accept(token);
    if (!accepted) {
      ADD_FAILURE() << accepted.error().message << " after " << result.text;
      return result;
    }
    result.ended = token == eos;
    if (!result.ended) {
      result.text += tokenizer.token_bytes(token);
    }
    ++result.tokens;
  }
  EXPECT_TRUE(!result.ended || matcher.is_stopped());
  return result;
}

Walk walk(const TextModel& model, const Grammar& grammar, uint32_t seed) {
  return walk(model.tokenizer, model.eos.front(), grammar, seed);
}

struct Schema {
  const char* text;
  bool (*valid)(const nlohmann::json&);
};

const Schema kSchemas[] = {
    {R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"}},
         "required":["name","age"],"additionalProperties":false})",
     [](const nlohmann::json& j) {
       return j.size() == 2 && j.at("name").is_string() && j.at("age").is_number_integer();
     }},
    {R"({"type":"array","items":{"enum":["red","green",3,null]},"minItems":2,"maxItems":4})",
     [](const nlohmann::json& j) {
       const nlohmann::json choices{"red", "green", 3, nullptr};
       bool fits = j.is_array() && j.size() >= 2 && j.size() <= 4;
       for (const auto& e : j) {
         fits = fits && std::count(choices.begin(), choices.end(), e) == 1;
       }
       return fits;
     }},
    {R"({"type":"integer","minimum":-5,"maximum":17})",
     [](const nlohmann::json& j) { return j.is_number() && j >= -5 && j <= 17; }},
    {R"({"type":"string","minLength":3,"maxLength":5,"pattern":"^[a-c]+$"})",
     [](const nlohmann::json& j) { return matches(j.get<std::string>(), "[a-c]{3,5}"); }},
    {R"({"$ref":"#/$defs/node","$defs":{"node":{"type":"object","properties":{
         "v":{"type":"boolean"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]}},
         "required":["v","next"],"additionalProperties":false}}})",
     [](const nlohmann::json& j) {
       const nlohmann::json* at = &j;
       while (at->is_object() && at->size() == 2 && at->at("v").is_boolean()) {
         at = &at->at("next");
       }
       return at->is_null() && j.is_object();
     }},
    {R"({"type":"number","exclusiveMinimum":0})",
     [](const nlohmann::json& j) { return j.is_number() && j > 0; }},
};

TEST(Grammar, EveryFinishedWalkFitsItsSchema) {
  WR_NEED_SMOLLM2();
  int finished = 0;
  for (const Schema& schema : kSchemas) {
    const auto grammar = smollm2_compiler().compile(GrammarKind::kJsonSchema, schema.text);
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (uint32_t seed = 0; seed < 12; ++seed) {
      const Walk w = walk(*test::smollm2(), *grammar, seed);
      if (w.ended) {
        ++finished;
        const auto json = nlohmann::json::parse(w.text, nullptr, false);
        ASSERT_FALSE(json.is_discarded()) << w.text;
        EXPECT_TRUE(schema.valid(json)) << schema.text << "\n" << w.text;
      }
    }
  }
  EXPECT_GE(finished, 60) << "of 72";
}

TEST(Grammar, AJsonObjectIsAnObject) {
  WR_NEED_SMOLLM2();
  const auto grammar = smollm2_compiler().compile(GrammarKind::kJsonObject, "ignored");
  ASSERT_TRUE(grammar) << grammar.error().message;
  int finished = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Walk w = walk(*test::smollm2(), *grammar, seed);
    if (w.ended) {
      ++finished;
      EXPECT_TRUE(nlohmann::json::parse(w.text, nullptr, false).is_object()) << w.text;
    }
  }
  EXPECT_GE(finished, 10);
}

TEST(Grammar, ARegexIsMatchedWhole) {
  WR_NEED_SMOLLM2();
  for (const char* pattern : {"[0-9]{3}-[0-9]{4}",
                              "(yes|no|perhaps)( sir)?",
                              "a*b+c?",
                              "/[a-z/]{1,9}\\.txt",
                              "(foo\n|\"bar\")\\\\",
                              "[^a-z\\s]{2,6}"}) {
    const auto grammar = smollm2_compiler().compile(GrammarKind::kRegex, pattern);
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const Walk w = walk(*test::smollm2(), *grammar, seed);
      ASSERT_TRUE(w.ended) << pattern << ": " << w.text;
      if (std::string_view(pattern).find("^a-z") == std::string_view::npos) {
        EXPECT_TRUE(matches(w.text, pattern)) << pattern << ": " << w.text;
      }
    }
  }
}

TEST(Grammar, LarkTakesRulesAndTerminals) {
  WR_NEED_SMOLLM2();
  const auto grammar = smollm2_compiler().compile(
      GrammarKind::kLark,
      "start: expr\nexpr: term ((\"+\" | \"-\") term)*\nterm: NUMBER | \"(\" expr \")\"\n"
      "NUMBER: /[0-9]{1,3}/\n");
  ASSERT_TRUE(grammar) << grammar.error().message;
  int finished = 0;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Walk w = walk(*test::smollm2(), *grammar, seed);
    if (!w.ended) {
      continue;
    }
    ++finished;
    EXPECT_EQ(w.text.find_first_not_of("0123456789()+-"), std::string::npos) << w.text;
    EXPECT_EQ(std::count(w.text.begin(), w.text.end(), '('),
              std::count(w.text.begin(), w.text.end(), ')'));
  }
  EXPECT_GE(finished, 5);
}

TEST(Grammar, AChoiceIsOneOfItsStrings) {
  WR_NEED_SMOLLM2();
  const std::vector<std::string> choices{
      "yes", "yes sir", "no", "a.*b", "C:\\dir", "\"quoted\"", "line\nbreak", "/slash/", "日本"};
  const auto grammar = smollm2_compiler().compile(GrammarKind::kChoice, choice_text(choices));
  ASSERT_TRUE(grammar) << grammar.error().message;
  std::set<std::string> seen;
  for (uint32_t seed = 0; seed < 60; ++seed) {
    const Walk w = walk(*test::smollm2(), *grammar, seed);
    EXPECT_TRUE(w.ended) << w.text;
    EXPECT_EQ(std::count(choices.begin(), choices.end(), w.text), 1) << w.text;
    seen.insert(w.text);
  }
  EXPECT_GE(seen.size(), 6U);
}

TEST(Grammar, AcceptRefusesWhatTheMaskLacks) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  const auto grammar = smollm2_compiler().compile(GrammarKind::kRegex, "[a-z]{5,40}");
  ASSERT_TRUE(grammar);
  GrammarMatcher matcher(*grammar);
  Mask mask(model.tokenizer.vocab_size());
  const TokenId the = *model.tokenizer.find("the");
  std::mt19937 rng(7);
  int refused = 0;
  for (int step = 0; step < 4; ++step) {
    ASSERT_TRUE(matcher.fill_mask(mask.words()));
    for (int i = 0; i < 300; ++i) {
      const auto id = static_cast<TokenId>(rng() % 49152);
      const bool taken = matcher.accept(id).has_value();
      EXPECT_EQ(taken, mask.allows(id)) << model.tokenizer.token_text(id);
      refused += taken ? 0 : 1;
      if (taken) {
        matcher = GrammarMatcher(*grammar);
        for (int again = 0; again < step; ++again) {
          ASSERT_TRUE(matcher.accept(the));
        }
      }
    }
    EXPECT_FALSE(matcher.accept(-1));
    EXPECT_FALSE(matcher.accept(49152));
    ASSERT_TRUE(matcher.accept(the));
  }
  EXPECT_GT(refused, 600);
  ASSERT_TRUE(matcher.fill_mask(mask.words())) << "a refused token changes nothing";
}

TEST(Grammar, AfterTheEndOnlyAnEndFollows) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  const auto grammar = smollm2_compiler().compile(GrammarKind::kChoice, R"(["the"])");
  ASSERT_TRUE(grammar);
  GrammarMatcher matcher(*grammar);
  Mask mask(model.tokenizer.vocab_size());
  const TokenId the = *model.tokenizer.find("the");
  EXPECT_FALSE(matcher.accept(model.eos.front()));
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  EXPECT_EQ(mask.allowed().size(), 3U) << "t, th, the";
  EXPECT_TRUE(mask.allows(the));
  ASSERT_TRUE(matcher.accept(the));
  EXPECT_TRUE(matcher.is_stopped());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(matcher.fill_mask(mask.words()));
    EXPECT_EQ(mask.allowed(), model.eos);
    EXPECT_FALSE(matcher.accept(the));
    EXPECT_TRUE(matcher.accept(model.eos.front()));
  }
}

TEST(Grammar, WhatNoTokenSpellsHasAnEmptyMask) {
  const auto bytes = value_or_throw(make_byte_text());
  constexpr TokenId kEnd = 'X';
  auto compiler =
      value_or_throw(GrammarCompiler::make(bytes->tokenizer, std::vector<TokenId>{kEnd}));
  const auto grammar = compiler.compile(GrammarKind::kRegex, "aX");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarMatcher matcher(*grammar);
  Mask mask(bytes->tokenizer.vocab_size());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  ASSERT_TRUE(matcher.accept('a'));
  ASSERT_TRUE(matcher.fill_mask(mask.words())) << "an end token has no text";
  EXPECT_TRUE(mask.allowed().empty());
  EXPECT_FALSE(matcher.is_stopped());
  EXPECT_FALSE(matcher.accept('b'));
}

TEST(Grammar, MatchersAreIndependent) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  const auto grammar = smollm2_compiler().compile(GrammarKind::kRegex, "[a-z]{5,9}|[0-9]{2}");
  ASSERT_TRUE(grammar);
  GrammarMatcher left(*grammar);
  GrammarMatcher right(*grammar);
  Mask before(model.tokenizer.vocab_size());
  Mask after(model.tokenizer.vocab_size());
  ASSERT_TRUE(right.fill_mask(before.words()));
  ASSERT_TRUE(left.accept(*model.tokenizer.find("7")));
  ASSERT_TRUE(right.fill_mask(after.words()));
  EXPECT_EQ(before.allowed(), after.allowed());
  ASSERT_TRUE(right.accept(*model.tokenizer.find("the")));
  EXPECT_FALSE(left.accept(*model.tokenizer.find("the")));
  EXPECT_TRUE(left.accept(*model.tokenizer.find("7")));
  EXPECT_TRUE(left.is_stopped());
  EXPECT_FALSE(right.is_stopped());
}

TEST(Grammar, AForkGoesItsOwnWay) {
  const auto bytes = value_or_throw(make_byte_text());
  auto compiler =
      value_or_throw(GrammarCompiler::make(bytes->tokenizer, std::vector<TokenId>{'X'}));
  const auto grammar = compiler.compile(GrammarKind::kRegex, "ab*(c|eX)");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarMatcher matcher(*grammar);
  ASSERT_TRUE(matcher.accept('a'));
  GrammarMatcher ends = matcher.fork();
  ASSERT_TRUE(ends.accept('b'));
  ASSERT_TRUE(ends.accept('c'));
  EXPECT_TRUE(ends.is_stopped());
  GrammarMatcher sticks = matcher.fork();
  ASSERT_TRUE(sticks.accept('e'));
  Mask mask(bytes->tokenizer.vocab_size());
  ASSERT_TRUE(sticks.fill_mask(mask.words()));
  EXPECT_TRUE(mask.allowed().empty()) << "an end token has no text";
  EXPECT_FALSE(sticks.accept('b'));
  EXPECT_FALSE(matcher.is_stopped());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  EXPECT_EQ(mask.allowed(), (std::vector<TokenId>{'b', 'c', 'e'}));
  ASSERT_TRUE(matcher.accept('c'));
  EXPECT_TRUE(matcher.is_stopped());
}

TEST(Grammar, ByteTokensAreSpellingsToo) {
  const std::string path = test::vocab_dir() + "/ggml-vocab-llama-spm.gguf";
  if (!std::filesystem::exists(path)) {
    GTEST_SKIP() << path << " is absent: tools/fetch_vocab_vectors.sh brings it";
  }
  const Tokenizer tokenizer = test::gguf_tokenizer(path);
  constexpr TokenId kEos = 2;
  auto compiler = value_or_throw(GrammarCompiler::make(tokenizer, std::vector<TokenId>{kEos}));
  const auto grammar = compiler.compile(GrammarKind::kRegex, "[A-C]{2}(é|日) (x|y)");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarMatcher matcher(*grammar);
  Mask mask(tokenizer.vocab_size());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  EXPECT_TRUE(mask.allows(*tokenizer.find("A")));
  EXPECT_TRUE(mask.allows(*tokenizer.find("<0x41>")));
  EXPECT_FALSE(mask.allows(*tokenizer.find("▁A"))) << "its bytes begin with a space";
  for (uint32_t seed = 0; seed < 20; ++seed) {
    const Walk w = walk(tokenizer, kEos, *grammar, seed);
    EXPECT_TRUE(w.ended);
    EXPECT_TRUE(matches(w.text, "[A-C]{2}(é|日) (x|y)")) << w.text;
  }
}

TEST(Grammar, ThreadsShareACompilerAndMatchersMove) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  GrammarOptions options;
  options.cached_grammars = 2;
  auto compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  const auto shared = compiler.compile(GrammarKind::kRegex, "[a-z]{2,9} [0-9]+");
  ASSERT_TRUE(shared);
  const Walk expected = walk(model, *shared, 5);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    GrammarMatcher matcher(*shared);
    threads.emplace_back([&, i, moved = std::move(matcher)]() mutable {
      Mask mask(model.tokenizer.vocab_size());
      EXPECT_TRUE(moved.fill_mask(mask.words()));
      for (int round = 0; round < 5; ++round) {
        EXPECT_TRUE(compiler.compile(GrammarKind::kRegex, fmt::format("[{}]", (i + round) % 3)));
        EXPECT_EQ(walk(model, *shared, 5).text, expected.text);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Grammar, TheMaskMayBeWiderOrNarrowerThanTheVocabulary) {
  const auto bytes = value_or_throw(make_byte_text());
  auto compiler = value_or_throw(GrammarCompiler::make(bytes->tokenizer, {}));
  const auto grammar = compiler.compile(GrammarKind::kRegex, "[a-c]+x");
  ASSERT_TRUE(grammar);
  GrammarMatcher matcher(*grammar);
  std::vector<uint32_t> wide(40, 0xffffffffU);
  ASSERT_TRUE(matcher.fill_mask(wide));
  std::vector<uint32_t> narrow(4, 0xffffffffU);
  ASSERT_TRUE(matcher.fill_mask(narrow));
  EXPECT_EQ(narrow, std::vector<uint32_t>(wide.begin(), wide.begin() + 4));
  int set = 0;
  for (const uint32_t word : wide) {
    set += std::popcount(word);
  }
  EXPECT_EQ(set, 3);
}

}  // namespace
}  // namespace warprow
