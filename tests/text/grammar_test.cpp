// SPDX-License-Identifier: Apache-2.0
// Grammars without a model: a walk picks tokens at random among those that the mask allows, with a
// bias toward what ends the text, and what comes out must be in the language.
#include "text/grammar.h"

#include "tests/text/text_test_support.h"
#include "text/byte_text.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using Clock = std::chrono::steady_clock;

GrammarCompiler& smollm2_compiler() {
  static GrammarCompiler compiler = [] {
    const TextModel& model = *test::smollm2();
    return value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos));
  }();
  return compiler;
}

class Mask {
 public:
  explicit Mask(int32_t vocab_size) : words_((static_cast<std::size_t>(vocab_size) + 31) / 32) {}

  std::span<uint32_t> words() { return words_; }
  [[nodiscard]] bool allows(TokenId id) const {
    const auto bit = static_cast<uint32_t>(id);
    return (words_[bit / 32] >> (bit % 32) & 1U) != 0;
  }
  [[nodiscard]] std::vector<TokenId> allowed() const {
    std::vector<TokenId> ids;
    for (std::size_t word = 0; word < words_.size(); ++word) {
      for (uint32_t bits = words_[word]; bits != 0; bits &= bits - 1) {
        ids.push_back(static_cast<TokenId>(word * 32) + std::countr_zero(bits));
      }
    }
    return ids;
  }

 private:
  std::vector<uint32_t> words_;
};

struct Walk {
  std::string text;
  bool ended = false;
  std::size_t tokens = 0;
};

// Random at first; later the shortest of a few candidates, and what closes something before that.
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
    EXPECT_EQ(mask.allows(eos), matcher.is_accepting()) << result.text;
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
     [](const nlohmann::json& j) {
       return std::regex_match(j.get<std::string>(), std::regex("[a-c]{3,5}"));
     }},
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
                              "(foo\\n|\"bar\")\\\\",
                              "[^a-z\\s]{2,6}"}) {
    const auto grammar = smollm2_compiler().compile(GrammarKind::kRegex, pattern);
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (uint32_t seed = 0; seed < 8; ++seed) {
      const Walk w = walk(*test::smollm2(), *grammar, seed);
      ASSERT_TRUE(w.ended) << pattern << ": " << w.text;
      if (std::string_view(pattern).find("^a-z") == std::string_view::npos) {
        EXPECT_TRUE(std::regex_match(w.text, std::regex(pattern))) << pattern << ": " << w.text;
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
        ASSERT_TRUE(matcher.rollback(1));
      }
    }
    EXPECT_FALSE(matcher.accept(-1));
    EXPECT_FALSE(matcher.accept(49152));
    ASSERT_TRUE(matcher.accept(*model.tokenizer.find("the")));
  }
  EXPECT_GT(refused, 600);
  ASSERT_TRUE(matcher.fill_mask(mask.words())) << "refusals do no harm";
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
  EXPECT_FALSE(matcher.is_accepting());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  const std::vector<TokenId> spellings = mask.allowed();
  EXPECT_EQ(spellings.size(), 3U) << "t, th, the";
  EXPECT_TRUE(mask.allows(the));
  ASSERT_TRUE(matcher.accept(the));
  EXPECT_TRUE(matcher.is_accepting());
  EXPECT_TRUE(matcher.is_stopped());
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(matcher.fill_mask(mask.words()));
    EXPECT_EQ(mask.allowed(), model.eos);
    EXPECT_FALSE(matcher.accept(the));
    EXPECT_TRUE(matcher.accept(model.eos.front()));
  }
  ASSERT_TRUE(matcher.rollback(3));
  EXPECT_FALSE(matcher.is_stopped());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  EXPECT_EQ(mask.allowed(), spellings);
}

TEST(Grammar, ForcedTokensAreTheTokenizersOwn) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  const Tokenizer& tokenizer = model.tokenizer;
  GrammarOptions options;
  options.forced_tokens = true;
  auto compiler = value_or_throw(GrammarCompiler::make(tokenizer, model.eos, options));
  const auto grammar = compiler.compile(
      GrammarKind::kRegex, "The capital of France is (Paris|Lyon), <\\|im_end\\|> indeed\\.");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarMatcher matcher(*grammar);
  std::string text;
  const auto take = [&](const std::vector<TokenId>& ids) {
    for (const TokenId id : ids) {
      ASSERT_TRUE(matcher.accept(id));
      text += tokenizer.token_bytes(id);
      EXPECT_FALSE(tokenizer.is_special(id));
    }
  };
  EXPECT_TRUE(GrammarMatcher(*smollm2_compiler().compile(GrammarKind::kRegex, "abc"))
                  .forced_tokens()
                  .empty());
  const std::vector<TokenId> first = matcher.forced_tokens();
  Mask mask(tokenizer.vocab_size());
  ASSERT_TRUE(matcher.fill_mask(mask.words()));
  EXPECT_EQ(mask.allowed(), std::vector<TokenId>{first.front()});
  EXPECT_EQ(first, tokenizer.encode("The capital of France is", false));
  take(first);
  take(tokenizer.encode(" Paris", false));
  while (!matcher.is_stopped()) {
    const std::vector<TokenId> forced = matcher.forced_tokens();
    ASSERT_FALSE(forced.empty()) << text;
    take(forced);
  }
  EXPECT_EQ(text, "The capital of France is Paris, <|im_end|> indeed.");
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
    EXPECT_TRUE(std::regex_match(w.text, std::regex("[A-C]{2}(é|日) (x|y)"))) << w.text;
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

TEST(Grammar, TheSameTextIsCompiledOnce) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  GrammarOptions options;
  options.cached_grammars = 2;
  auto compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  const auto compile = [&](GrammarKind kind, const char* text) {
    ASSERT_TRUE(compiler.compile(kind, text));
  };
  compile(GrammarKind::kRegex, "[a]");
  compile(GrammarKind::kRegex, "[a]");
  EXPECT_EQ(compiler.cache_hits(), 1);
  compile(GrammarKind::kChoice, R"(["a"])");
  EXPECT_EQ(compiler.cache_hits(), 1) << "the kind counts";
  compile(GrammarKind::kRegex, "[a]");
  EXPECT_EQ(compiler.cache_hits(), 2);
  compile(GrammarKind::kRegex, "[b]");
  compile(GrammarKind::kChoice, R"(["a"])");
  EXPECT_EQ(compiler.cache_hits(), 2) << "the one used longest ago has gone";
  compile(GrammarKind::kRegex, "[b]");
  EXPECT_EQ(compiler.cache_hits(), 3);
}

struct BadCase {
  GrammarKind kind;
  std::string text;
  const char* message;  // a part of it
};

TEST(Grammar, MistakesAreNamedWithTheirPosition) {
  WR_NEED_SMOLLM2();
  const BadCase cases[] = {
      {GrammarKind::kJsonSchema, "{\"type\":\n  strin", "line 2 column 3"},
      {GrammarKind::kJsonSchema, "[1]", "an object or a boolean"},
      {GrammarKind::kJsonSchema, R"({"type":"strange"})", "strange"},
      {GrammarKind::kJsonSchema, R"({"type":"string","minLength":5,"maxLength":2})", "minLength"},
      {GrammarKind::kJsonSchema, R"({"not":{"type":"string"}})", "not"},
      {GrammarKind::kJsonSchema, R"({"$ref":"http://example.com/x.json"})", "example.com"},
      {GrammarKind::kRegex, "a(b", "at 1(2): unclosed group"},
      {GrammarKind::kRegex, "a**b\\", "at 1("},
      {GrammarKind::kRegex, "a\\b", ""},
      {GrammarKind::kLark, "start: \"a\"\n  | missing\n", "missing"},
      {GrammarKind::kLark, "start: (\n", "at 1("},
      {GrammarKind::kLark, "", ""},
      {GrammarKind::kChoice, "[]", "no choices"},
      {GrammarKind::kChoice, R"(["a",""])", "empty"},
      {GrammarKind::kChoice, R"(["a",1])", "column"},
      {GrammarKind::kRegex, "\xff\xfe", "UTF-8"},
  };
  for (const BadCase& c : cases) {
    const auto grammar = smollm2_compiler().compile(c.kind, c.text);
    ASSERT_FALSE(grammar) << c.text;
    EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(grammar.error().message.find(c.message), std::string::npos)
        << c.text << "\n"
        << grammar.error().message;
    EXPECT_EQ(grammar.error().message.find('\n'), std::string::npos) << grammar.error().message;
  }
}

std::string repeat(std::string_view s, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += s;
  }
  return out;
}

// Either an error, or a grammar whose first steps are as quick as any.
void expect_bounded(GrammarCompiler& compiler, GrammarKind kind, const std::string& text) {
  const auto start = Clock::now();
  const auto grammar = compiler.compile(kind, text);
  if (grammar) {
    GrammarMatcher matcher(*grammar);
    Mask mask(49152);
    std::mt19937 rng(3);
    for (int step = 0; step < 5 && matcher.fill_mask(mask.words()); ++step) {
      const auto allowed = mask.allowed();
      if (allowed.empty() || !matcher.accept(allowed[rng() % allowed.size()])) {
        break;
      }
    }
  }
  const std::chrono::duration<double> took = Clock::now() - start;
  EXPECT_LT(took.count(), 4.0) << text.substr(0, 60);
  if (std::getenv("WR_GRAMMAR_TIMES") != nullptr) {
    std::printf("%.3f s  %s  <- %s\n",
                took.count(),
                grammar ? "compiled" : grammar.error().message.c_str(),
                text.substr(0, 60).c_str());
  }
}

TEST(Grammar, HostileTextsAreBounded) {
  WR_NEED_SMOLLM2();
  auto& compiler = smollm2_compiler();
  const std::string deep_json =
      repeat(R"({"properties":{"a":)", 10000) + "{}" + repeat("}}", 10000);
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; wide.size() < 1000000; ++i) {
    wide += (i == 0 ? "" : ",") + fmt::format(R"("property_{}":{{"type":"string"}})", i);
  }
  wide += "}}";
  std::string both = R"({"allOf":[)";
  for (int i = 0; i < 400; ++i) {
    both += (i == 0 ? "" : ",") +
            fmt::format(R"({{"anyOf":[{{"properties":{{"p{0}":{{"type":"string"}}}}}},)"
                        R"({{"properties":{{"q{0}":{{"type":"integer"}}}}}}]}})",
                        i);
  }
  both += "]}";
  const BadCase cases[] = {
      {GrammarKind::kRegex, "(a|aa){1,100}b", ""},
      {GrammarKind::kRegex, "((a|aa){1,100}b){1,100}c", ""},
      {GrammarKind::kRegex, "(((a{1,1000}){1,1000}){1,1000}){1,1000}", ""},
      {GrammarKind::kRegex, "(.*a.{40}|.*b.{41}|.*c.{42})x", ""},
      {GrammarKind::kRegex, "(.*a.{200})", ""},
      {GrammarKind::kRegex, "(\\w{1,500}\\s){1,500}", ""},
      {GrammarKind::kRegex, repeat("(", 10000) + "a" + repeat(")", 10000), ""},
      {GrammarKind::kRegex, repeat("(", 32000) + "a" + repeat(")", 32000), ""},
      {GrammarKind::kRegex, repeat("a?", 20000) + repeat("a", 20000), ""},
      {GrammarKind::kRegex, repeat("[a-z]|", 10000) + "b", ""},
      {GrammarKind::kRegex, repeat("\\pL", 20000), ""},
      {GrammarKind::kLark, "start: " + repeat("(", 10000) + "\"a\"" + repeat(")", 10000), ""},
      {GrammarKind::kLark, "start: " + repeat("(", 30000) + "\"a\"" + repeat(")", 30000), ""},
      {GrammarKind::kLark, "start: /" + repeat("(", 10000) + "a" + repeat(")", 10000) + "/", ""},
      {GrammarKind::kLark, "start: " + repeat("~", 60000), ""},
      {GrammarKind::kLark, "start: start start | start | \"a\"", ""},
      {GrammarKind::kLark, "start: \"a\"{1000000}", ""},
      {GrammarKind::kLark, "start: A\nA: B{1000}\nB: C{1000}\nC: \"a\"{1000}", ""},
      {GrammarKind::kLark, "start: A\nA: A \"x\"", ""},
      {GrammarKind::kLark, repeat("start: \"a\"\n", 5000), ""},
      {GrammarKind::kLark, "start: \"" + repeat("a", 60000) + "\"", ""},
      {GrammarKind::kLark, "start: %json " + deep_json.substr(0, 60000), ""},
      {GrammarKind::kJsonSchema, deep_json, ""},
      {GrammarKind::kJsonSchema, repeat("[", 500000), ""},
      {GrammarKind::kJsonSchema, wide, ""},
      {GrammarKind::kJsonSchema, both, ""},
      {GrammarKind::kJsonSchema, "\"" + repeat("a", 1 << 20) + "\"", ""},
      {GrammarKind::kJsonSchema, R"({"const":")" + repeat("ab", 500000) + "\"}", ""},
      {GrammarKind::kRegex, "a{100000}", ""},
      {GrammarKind::kJsonSchema, R"({"$ref":"#"})", ""},
      {GrammarKind::kJsonSchema, R"({"allOf":[{"$ref":"#"}]})", ""},
      {GrammarKind::kJsonSchema, R"({"type":"array","minItems":1000000000})", ""},
      {GrammarKind::kJsonSchema, R"({"type":"string","minLength":1000000000})", ""},
      {GrammarKind::kJsonSchema, R"({"type":"string","pattern":"((a|aa){1,1000}b){1,1000}"})", ""},
      {GrammarKind::kChoice, "[\"" + repeat("a\",\"", 12000) + "b\"]", ""},
      {GrammarKind::kRegex, std::string((64 << 10) + 1, 'a'), ""},
  };
  for (const BadCase& c : cases) {
    expect_bounded(compiler, c.kind, c.text);
  }
  const auto grammar = compiler.compile(GrammarKind::kRegex, "still [a-z]{3} here");
  EXPECT_TRUE(grammar) << grammar.error().message;
}

TEST(Grammar, AnEndTokenLiesInTheVocabulary) {
  WR_NEED_SMOLLM2();
  const std::vector<TokenId> eos{2, 49152};
  const auto compiler = GrammarCompiler::make(test::smollm2()->tokenizer, eos);
  ASSERT_FALSE(compiler);
  EXPECT_NE(compiler.error().message.find("49152"), std::string::npos);
}

}  // namespace
}  // namespace warprow
