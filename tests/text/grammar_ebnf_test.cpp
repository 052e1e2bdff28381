// SPDX-License-Identifier: Apache-2.0
// EBNF with `::=`: which texts a grammar accepts, byte by byte, and random grammars against an enumeration of their
// languages.
#include "text/byte_text.h"
#include "text/grammar.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr TokenId kEnd = 0;  // a byte that no text here contains

GrammarCompiler make_compiler(const GrammarOptions& options = {}) {
  static const std::unique_ptr<TextModel> bytes = value_or_throw(make_byte_text());
  return value_or_throw(
      GrammarCompiler::make(bytes->tokenizer, std::vector<TokenId>{kEnd}, options));
}

Result<Grammar> compile(const std::string& text) {
  static GrammarCompiler compiler = make_compiler();
  return compiler.compile(GrammarKind::kLark, text);
}

bool accepts(const Grammar& grammar, std::string_view text) {
  GrammarMatcher matcher(grammar);
  for (const char c : text) {
    if (!matcher.accept(static_cast<uint8_t>(c))) {
      return false;
    }
  }
  return matcher.accept(kEnd).has_value();
}

void expect_language(const std::string& grammar,
                     const std::vector<std::string>& texts,
                     const std::vector<std::string>& others) {
  SCOPED_TRACE(grammar);
  const Result<Grammar> compiled = compile(grammar);
  ASSERT_TRUE(compiled) << compiled.error().message;
  for (const std::string& text : texts) {
    EXPECT_TRUE(accepts(*compiled, text)) << '"' << text << '"';
  }
  for (const std::string& text : others) {
    EXPECT_FALSE(accepts(*compiled, text)) << '"' << text << '"';
  }
}

TEST(GrammarEbnf, EveryForm) {
  expect_language(R"(root ::= "yes" | "no")", {"yes", "no"}, {"", "ye", "yesno"});
  expect_language(R"(root ::= [a-c]+ "x"? [^a-z\n]{2,3} .)",
                  {"axA1x", "cbA1\n", "bxABC."},
                  {"xA1x", "aA", "aAa.", "aABCDE"});
  expect_language(
      "root ::= (\"a\" | \"b\" [0-9]*){2} # two\n\n", {"aa", "b12a", "bb"}, {"a", "aaa"});
  expect_language("root ::= \"\\\"\\\\\\x41\\u00e9\\U0001F600\\n\\t\\r\" [\\]\\-^]",
                  {"\"\\A\u00e9\U0001F600\n\t\r]",
                   "\"\\A\u00e9\U0001F600\n\t\r-",
                   "\"\\A\u00e9\U0001F600\n\t\r^"},
                  {"\"\\A\u00e8\U0001F600\n\t\r]"});
  expect_language(
      "root ::= [\u00e0-\u00ff]{,2} [-+] [a-]", {"\u00e9+a", "--", "\u00e9\u00ff--"}, {"\u00e9b-"});
  expect_language("root ::= \"a\"{2} \"b\"{0} \"c\"{1,}", {"aac", "aaccc"}, {"aa", "aabc", "aaac"});
  expect_language(
      "root::=a-1 b_2\na-1::=\"1\"\nb_2 ::= | \"2\" |\n\"3\"", {"1", "12", "13"}, {"123"});
  expect_language("x ::=\n  \"a\"\n  | \"b\"\nroot ::= x x", {"ab", "bb"}, {"a"});
}

constexpr const char* kJson = R"(
# JSON without much white space
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws
object ::=
  "{" ws (
    string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws
array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\/bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9]+)? ws
ws     ::= | " " | "\n" [ \t]{0,20}
)";

TEST(GrammarEbnf, Json) {
  expect_language(
      kJson,
      {"{}",
       "{ }",
       R"({"a": [1, -2.5e+3, "x\n\u00e9é", true], "b": {"c": null}})",
       "{\"a\":\n\t[[], {}]\n}"},
      {"", "[]", "{", R"({"a"})", R"({"a": 01})", R"({"a": 1,})", "{\"a\":  1}", R"({a: 1})"});
}

// The white space after a term may be the line end that the root requires, so a greedy match would fail here.
TEST(GrammarEbnf, WhatFollowsMayBeginLikeWhatEnds) {
  expect_language(R"g(
root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
)g",
                  {"1=2\n", "x1*c = (a+2 )\n\n \n", "1=2\n3=4\n", "a=b \nc=d\n"},
                  {"1=2", "1=\n", "=1\n", "1=2\n3\n", "1 2=3\n"});
  expect_language(R"(root ::= "a" root "bc" | "ab" | "a")",
                  {"a", "ab", "aabc", "aabbc", "aaabcbc"},
                  {"abc", "aab", "aabcb", "abbc"});
  expect_language(
      R"g(root ::= "(" root ")" | [a-z]+ "x" [a-z]*)g", {"ax", "((axb))", "xx"}, {"x", "(ab)"});
  expect_language(
      "root ::= word (\" \" root)? | \"(\" root \")\"\n"
      "word ::= [a-z\u00e0-\u00ff]+ \"\u00e9\"",
      {"a\u00e9", "\u00e8\u00e9 \u00e9\u00e9", "(\u00e9\u00e9)"},
      {"\u00e9", "a\u00e8"});
}

TEST(GrammarEbnf, MistakesHaveAPosition) {
  const std::pair<const char*, const char*> cases[] = {
      {"root ::= a\nb ::= \"x\"", "at 1(10): no rule is named 'a'"},
      {"start ::= \"x\"", "no rule is named 'root'"},
      {"root ::= \"x\"\nroot ::= \"y\"", "at 2(1): 'root' is defined twice"},
      {"root ::= \"x", "at 1(10): the string has no end"},
      {"root ::= (\"x\"\n", "at 2(1): ')' is missing"},
      {"root ::= \"x\")", "at 1(13): ')' without '('"},
      {"root ::= [z-a]", "at 1(11): the range is empty"},
      {"root ::= [a", "at 1(10): the class has no end"},
      {"root ::= []", "at 1(10): the class is empty"},
      {"root ::= \"\\q\"", "at 1(11): this escape names no character"},
      {"root ::= \"\\ud800\"", "at 1(11): this escape names no character"},
      {"root ::= \"\\x4", "at 1(11): this escape names no character"},
      {"root ::= \"a\"***********", "a repetition of repetitions of repetitions"},
      {"root ::= \"a\"{3,2}", "at 1(13): '{m,n}' wants numbers up to 2000, m <= n"},
      {"root ::= \"a\"{1,1000000000}", "at 1(13): '{m,n}' wants numbers up to 2000, m <= n"},
      {"root ::= \"a\"{5000}", "at 1(13): '{m,n}' wants numbers up to 2000, m <= n"},
      {"root ::= 'a'", "at 1(10): this is no part of a rule"},
      {"root ::= <think>", "at 1(10): this is no part of a rule"},
      {"\u00e9 ::= \"a\"\nroot ::= \"b\"", "at 1(1): a rule begins with its name and '::='"},
      {"root ::= \"a\"\n  root : \"b\"", "at 2(8): this is no part of a rule"},
  };
  for (const auto& [grammar, message] : cases) {
    const Result<Grammar> compiled = compile(grammar);
    ASSERT_FALSE(compiled) << grammar;
    EXPECT_EQ(compiled.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(compiled.error().message.find(message), std::string::npos)
        << grammar << "\n"
        << compiled.error().message;
  }
}

TEST(GrammarEbnf, HostileTextsAreBounded) {
  std::string doubling = "root ::= r0 root | \"x\"\n";
  for (int i = 0; i < 60; ++i) {
    doubling += fmt::format("r{} ::= r{} r{}\n", i, i + 1, i + 1);
  }
  doubling += "r60 ::= \"a\"";
  const std::string flat = "root ::= r0\n" + doubling.substr(doubling.find('\n') + 1);
  const std::string stars = "root ::= root \"a\" | \"b\"" + std::string(50'000, '*');
  std::string nothing = flat;
  nothing.replace(nothing.size() - 3, 3, "\"\"");
  std::string wide = "root ::= root \"a\"";
  for (int i = 0; wide.size() < 60'000; ++i) {
    wide += fmt::format(" | [a-z]* \"{}\" root", i);
  }
  for (const std::string& text : {doubling,
                                  flat,
                                  nothing,
                                  std::string("root ::= (root \"a\"){2000}{2000}{2000} | \"b\""),
                                  stars,
                                  wide,
                                  "root ::= " + std::string(30'000, '('),
                                  std::string("root ::= root"),
                                  std::string("root ::= a\na ::= b\nb ::= a | \"\"")}) {
    const auto begun = std::chrono::steady_clock::now();
    const Result<Grammar> grammar = compile(text);
    if (grammar) {
      accepts(*grammar, "aaaa");
    } else {
      EXPECT_EQ(grammar.error().message.find("not compiled within"), std::string::npos)
          << text.substr(0, 60);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    EXPECT_LT(took.count(), 60.0) << text.substr(0, 60);
  }
}

std::string repeated(std::string_view text, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) {
    out += text;
  }
  return out;
}

// A few lines with a recursive rule may expand to any amount of work. The translation counts it and refuses too much of
// it by name, long before the time limit ends the worker process.
TEST(GrammarEbnf, WorkBesideRulesThatRecurIsBounded) {
  GrammarOptions options;
  options.max_compile_ms = 60'000;  // long enough that a busy machine does not change the message
  GrammarCompiler compiler = make_compiler(options);
  std::string empties = "root ::= \"a\" root | e0\n";
  for (int i = 0; i < 60; ++i) {
    empties += fmt::format("e{} ::= e{} e{}\n", i, i + 1, i + 1);
  }
  empties += "e60 ::= \"\"";
  const auto nested = [](const std::string& inner) {
    return repeated("(", 90) + inner + repeated(")*", 90);
  };
  const std::string alternatives = "([a]" + repeated(" | [a]", 989) + ")";
  const std::string texts[] = {
      empties,
      "root ::= root \"a\" | " + nested("[a]" + repeated("|[a]", 3'900)),
      "root ::= root \"b\" | " + alternatives + "*",
      "root ::= root \"b\" | " + nested(alternatives),
      "root ::= root \"b\" | " + repeated("[a]? ", 3'900),
      "root ::= " + nested(repeated("x ", 25'000) + "root") + "\nx ::= \"a\"",
      "root ::= root \"a\" | " + nested(repeated("x ", 25'000) + "\"a\"") + "\nx ::= \"\"",
      "root ::= \"b\"" + repeated(" | w root", 3'000) + "\nw ::= [a]" + repeated("|[a]", 3'000),
  };
  for (const std::string& text : texts) {
    const auto begun = std::chrono::steady_clock::now();
    const Result<Grammar> grammar = compiler.compile(GrammarKind::kLark, text);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    if (!grammar) {
      EXPECT_NE(grammar.error().message.find("beside rules that recur"), std::string::npos)
          << text.substr(0, 60) << ": " << grammar.error().message;
    }
    EXPECT_LT(took.count(), 10.0) << text.substr(0, 60);
  }
  EXPECT_TRUE(compiler.compile(GrammarKind::kLark, "root ::= \"still\" root | \"here\""));
}

// A random grammar, and its language up to a maximum length.
class RandomGrammar {
 public:
  explicit RandomGrammar(uint32_t seed) : random_(seed) {
    for (char name : {'S', 'A', 'B'}) {
      const uint32_t num_alternatives = 1 + random_() % 3;
      for (uint32_t i = 0; i < num_alternatives; ++i) {
        rules_[name].push_back(alternative());
      }
    }
  }

  [[nodiscard]] std::string text() const {
    std::string out;
    for (const auto& [name, alternatives] : rules_) {
      out += name == 'S' ? "root ::=" : fmt::format("{} ::=", name);
      const char* separator = " ";
      for (const auto& items : alternatives) {
        out += std::exchange(separator, " | ");
        for (const Item& item : items) {
          out += item.symbol == "S" ? "root"
                 : is_name(item)    ? item.symbol
                                    : '"' + item.symbol + '"';
          out += item.often == ' ' ? " " : fmt::format("{} ", item.often);
        }
      }
      out += '\n';
    }
    return out;
  }

  [[nodiscard]] std::set<std::string> language() const {
    std::map<std::string, std::set<std::string>> known;
    size_t before = 1;
    size_t size = 0;
    while (size != before) {
      before = std::exchange(size, 0);
      for (const auto& [name, alternatives] : rules_) {
        for (const auto& items : alternatives) {
          std::set<std::string> texts = {""};
          for (const Item& item : items) {
            texts = joined(texts, item_texts(item, known));
          }
          known[std::string(1, name)].merge(texts);
        }
      }
      for (const auto& [name, texts] : known) {
        size += texts.size();
      }
    }
    return known["S"];
  }

  static constexpr size_t kMaxLength = 5;

 private:
  struct Item {
    std::string symbol;  // a rule's name, or letters
    char often = ' ';
  };

  static bool is_name(const Item& item) { return item.symbol[0] < 'a'; }

  std::vector<Item> alternative() {
    constexpr const char* kSymbols[] = {"S", "A", "B", "a", "b", "ab", "abc", "ba", "c"};
    constexpr char kOften[] = {' ', ' ', ' ', ' ', '*', '+', '?'};
    std::vector<Item> items(random_() % 4);
    for (Item& item : items) {
      item = {kSymbols[random_() % std::size(kSymbols)], kOften[random_() % std::size(kOften)]};
    }
    return items;
  }

  static std::set<std::string> joined(const std::set<std::string>& a,
                                      const std::set<std::string>& b) {
    std::set<std::string> out;
    for (const std::string& first : a) {
      for (const std::string& second : b) {
        if (first.size() + second.size() <= kMaxLength) {
          out.insert(first + second);
        }
      }
    }
    return out;
  }

  static std::set<std::string> item_texts(
      const Item& item, const std::map<std::string, std::set<std::string>>& known) {
    const auto at = known.find(item.symbol);
    const std::set<std::string> once = !is_name(item)      ? std::set<std::string>{item.symbol}
                                       : at == known.end() ? std::set<std::string>{}
                                                           : at->second;
    std::set<std::string> out = once;
    if (item.often == '*' || item.often == '?') {
      out.insert("");
    }
    if (item.often == '*' || item.often == '+') {
      for (size_t i = 1; i < kMaxLength; ++i) {
        out.merge(joined(out, once));
      }
    }
    return out;
  }

  std::mt19937 random_;
  std::map<char, std::vector<std::vector<Item>>> rules_;
};

void add_words(std::string& word, std::vector<std::string>& out) {
  out.push_back(word);
  for (const char c : {'a', 'b', 'c'}) {
    if (word.size() < RandomGrammar::kMaxLength) {
      word.push_back(c);
      add_words(word, out);
      word.pop_back();
    }
  }
}

TEST(GrammarEbnf, RandomGrammarsKeepTheirLanguages) {
  std::vector<std::string> words;
  std::string word;
  add_words(word, words);
  int num_compared = 0;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    const RandomGrammar random(seed);
    SCOPED_TRACE(random.text());
    const std::set<std::string> language = random.language();
    if (language.size() < 2) {
      continue;  // too few texts to test prefixes
    }
    const Result<Grammar> grammar = compile(random.text());
    ASSERT_TRUE(grammar) << grammar.error().message;
    for (const std::string& text : words) {
      ASSERT_EQ(accepts(*grammar, text), language.contains(text)) << '"' << text << '"';
    }
    ++num_compared;
  }
  EXPECT_GT(num_compared, 80);
}

}  // namespace
}  // namespace warprow
