// SPDX-License-Identifier: Apache-2.0
// The limits of grammars: refusals and their messages, time limits, and the cache.
#include "tests/support/sanitizers.h"
#include "tests/text/grammar_test_support.h"
#include "tests/text/repeat.h"

#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <string>
#include <thread>
#include <unistd.h>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using test::repeat;

using Clock = std::chrono::steady_clock;
using test::Mask;
using test::smollm2_compiler;

TEST(GrammarLimits, TheSameTextIsCompiledOnce) {
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
  EXPECT_EQ(compiler.cache_hits(), 1) << "the kind is part of the key";
  compile(GrammarKind::kRegex, "[a]");
  EXPECT_EQ(compiler.cache_hits(), 2);
  compile(GrammarKind::kRegex, "[b]");
  compile(GrammarKind::kChoice, R"(["a"])");
  EXPECT_EQ(compiler.cache_hits(), 2) << "the least recently used one was evicted";
  compile(GrammarKind::kRegex, "[b]");
  EXPECT_EQ(compiler.cache_hits(), 3);
}

struct TooLargeCase {
  GrammarKind kind;
  std::string text;
  const char* message;  // a part of the message
};

TEST(GrammarLimits, MistakesAreNamedWithTheirPosition) {
  WR_NEED_SMOLLM2();
  const TooLargeCase cases[] = {
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
  for (const TooLargeCase& c : cases) {
    const auto grammar = smollm2_compiler().compile(c.kind, c.text);
    ASSERT_FALSE(grammar) << c.text;
    EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument);
    EXPECT_NE(grammar.error().message.find(c.message), std::string::npos)
        << c.text << "\n"
        << grammar.error().message;
    EXPECT_EQ(grammar.error().message.find('\n'), std::string::npos) << grammar.error().message;
  }
}

// Either an error, or a grammar whose first masks are fast. The limit is 2 s; the rest is for busy machines and
// sanitizers.
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
  EXPECT_LT(took.count(), 60.0) << text.substr(0, 60);
}

TEST(GrammarLimits, HostileTextsAreBounded) {
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
  const TooLargeCase cases[] = {
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
  for (const TooLargeCase& c : cases) {
    expect_bounded(compiler, c.kind, c.text);
  }
  EXPECT_TRUE(compiler.compile(GrammarKind::kRegex, "still [a-z]{3} here"));
}

// Without the limit it would take minutes and gigabytes.
std::string endless_schema(int i) {
  return fmt::format(R"({{"type":"integer","multipleOf":{}}})", 99999989 + i);
}

int num_threads() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("Threads:")) {
      return std::stoi(line.substr(8));
    }
  }
  return -1;
}

int64_t resident_mb() {
  std::ifstream statm("/proc/self/statm");
  int64_t all = 0;
  int64_t resident = 0;
  statm >> all >> resident;
  return resident * sysconf(_SC_PAGESIZE) >> 20;
}

TEST(GrammarLimits, WhatTakesTooLongEndsAndLeavesNothing) {
  WR_NEED_SMOLLM2();
  auto& compiler = smollm2_compiler();
  ASSERT_TRUE(compiler.compile(GrammarKind::kRegex, "before"));
  const int threads = num_threads();
  const int64_t resident = resident_mb();
  for (int i = 0; i < 4; ++i) {
    const auto grammar = compiler.compile(GrammarKind::kJsonSchema, endless_schema(2 * i));
    ASSERT_FALSE(grammar);
    EXPECT_EQ(grammar.error().code, ErrorCode::kInvalidArgument);
    EXPECT_THAT(grammar.error().message,
                ::testing::MatchesRegex(
                    "JSON schema: takes more than (1000 ms of processor time|256 MiB of memory)"));
  }
  EXPECT_LE(num_threads(), threads);
  EXPECT_LT(resident_mb() - resident, 64);
  EXPECT_TRUE(compiler.compile(GrammarKind::kRegex, "after"));
}

TEST(GrammarLimits, WhatBrokeALimitIsRememberedAndNotTriedAgain) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  GrammarOptions options;
  options.max_compile_ms = 100;
  auto compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  const auto first = compiler.compile(GrammarKind::kJsonSchema, endless_schema(0));
  ASSERT_FALSE(first);
  const auto start = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    const auto again = compiler.compile(GrammarKind::kJsonSchema, endless_schema(0));
    ASSERT_FALSE(again);
    EXPECT_EQ(again.error().message, first.error().message);
  }
  EXPECT_LT(Clock::now() - start, std::chrono::seconds(20))
      << "without the limit it takes a hundred seconds";
}

#if !WR_ASAN && !WR_TSAN  // sanitizers have no limit on memory
TEST(GrammarLimits, MemoryIsLimited) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  GrammarOptions options;
  options.max_compile_ms = 60'000;
  options.max_compile_mb = 8;
  auto compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  auto grammar = compiler.compile(GrammarKind::kJsonSchema, endless_schema(0));
  ASSERT_FALSE(grammar);
  EXPECT_EQ(grammar.error().message, "JSON schema: takes more than 8 MiB of memory");
  options.max_compile_mb = 256;
  options.max_kept_mb = 0;
  compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  grammar = compiler.compile(GrammarKind::kRegex, "(one|two){1,100}");
  ASSERT_FALSE(grammar);
  EXPECT_THAT(grammar.error().message, ::testing::HasSubstr("once compiled; at most 0 are given"));
}
#endif

// Slow grammars are limited to a few places. A further slow grammar gets kBusy, because it is not invalid. Fast
// grammars still compile.
TEST(GrammarLimits, SlowGrammarsLeaveRoomForQuickOnes) {
  WR_NEED_SMOLLM2();
  auto& compiler = smollm2_compiler();
  std::atomic<int> refused{0};
  std::atomic<int> busy{0};
  std::atomic<bool> done{false};
  std::thread quick([&] {
    for (int i = 0; !done; ++i) {
      const auto start = Clock::now();
      const auto grammar = compiler.compile(GrammarKind::kRegex, fmt::format("quick {}", i));
      EXPECT_TRUE(grammar) << grammar.error().message;
      EXPECT_LT(Clock::now() - start, std::chrono::seconds(30));
    }
  });
  std::vector<std::thread> slow;
  for (int thread = 0; thread < 4; ++thread) {
    slow.emplace_back([&, thread] {
      for (int i = 0; i < 4; ++i) {
        const auto grammar =
            compiler.compile(GrammarKind::kJsonSchema, endless_schema(100 + 20 * thread + 2 * i));
        ASSERT_FALSE(grammar);
        ++(grammar.error().code == ErrorCode::kBusy ? busy : refused);
      }
    });
  }
  for (std::thread& thread : slow) {
    thread.join();
  }
  done = true;
  quick.join();
  EXPECT_EQ(refused + busy, 16);
  EXPECT_GE(refused, 2);
  EXPECT_GE(busy, 1);
}

TEST(GrammarLimits, ASlowStepEndsItsMatcher) {
  WR_NEED_SMOLLM2();
  const TextModel& model = *test::smollm2();
  GrammarOptions options;
  options.max_step_ms = 0;
  auto compiler = value_or_throw(GrammarCompiler::make(model.tokenizer, model.eos, options));
  const auto grammar = compiler.compile(GrammarKind::kRegex, "(.*a.{40}|.*b.{41}|.*c.{42})x");
  ASSERT_TRUE(grammar) << grammar.error().message;
  GrammarMatcher matcher(*grammar);
  Mask mask(49152);
  const auto deadline = Clock::now() + std::chrono::minutes(1);
  Result<void> filled;
  // Time is checked now and then, so nothing but steps may happen here. Those that end before it is may continue.
  while (filled && Clock::now() < deadline) {
    filled = matcher.fill_mask(mask.words());
  }
  ASSERT_FALSE(filled);
}

// Adjacent literals are merged, whatever names lie between them.
TEST(GrammarLimits, TerminalsPutIntoEachOtherAreBounded) {
  WR_NEED_SMOLLM2();
  const auto doubling = [](int times, const char* definition) {
    std::string text = "start: N0\n";
    for (int i = 0; i < times; ++i) {
      text += fmt::format(fmt::runtime(definition), i, i + 1);
    }
    return text + fmt::format("N{}: \"a\"\n", times);
  };
  for (const char* definition : {"N{0}: N{1} N{1}\n",
                                 "N{0}.1: N{1} \"N0\" N{1}\n",
                                 "N{0}: N{1} // N0\n  | /\\/N0/ N{1} N{1}\n",
                                 "N{0}: N{1} <\"> N{1} <\">\n"}) {
    const auto grammar = smollm2_compiler().compile(GrammarKind::kLark, doubling(60, definition));
    ASSERT_FALSE(grammar);
    EXPECT_THAT(grammar.error().message, ::testing::HasSubstr("put into each other"));
  }
  EXPECT_TRUE(
      smollm2_compiler().compile(GrammarKind::kLark, doubling(15, "N{0}: N{1} N{1} # N0\n")));
  EXPECT_TRUE(smollm2_compiler().compile(
      GrammarKind::kLark,
      "start: SELECT (FROM | WHERE)\nSELECT: \"SELECT\" FROM?\nFROM: \"SELECT\"i\n"
      "WHERE: /WHERE SELECT/ // WHERE\n"));
}

TEST(GrammarLimits, AnEndTokenLiesInTheVocabulary) {
  WR_NEED_SMOLLM2();
  const std::vector<TokenId> eos{2, 49152};
  const auto compiler = GrammarCompiler::make(test::smollm2()->tokenizer, eos);
  ASSERT_FALSE(compiler);
  EXPECT_NE(compiler.error().message.find("49152"), std::string::npos);
}

}  // namespace
}  // namespace warprow
