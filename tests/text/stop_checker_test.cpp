// SPDX-License-Identifier: Apache-2.0
#include "text/stop_checker.h"

#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

struct Outcome {
  std::string text;
  std::optional<StopMatch> match;
  std::string stop;  // of the match
};

Outcome run(const std::vector<std::string>& pieces,
            const std::vector<std::string>& stops,
            bool include) {
  StopChecker checker(stops, include);
  Outcome out;
  for (const std::string& piece : pieces) {
    out.text += checker.push(piece);
  }
  out.text += checker.flush();
  out.match = checker.match();
  if (out.match) {
    out.stop = checker.matched();
  }
  return out;
}

TEST(StopChecker, SplitAtEveryPosition) {
  const std::string text = "one two <|end|> three";
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    for (const bool include : {false, true}) {
      const Outcome o = run({text.substr(0, cut), text.substr(cut)}, {"zzz", "<|end|>"}, include);
      EXPECT_EQ(o.text, include ? "one two <|end|>" : "one two ");
      ASSERT_TRUE(o.match);
      EXPECT_EQ(o.match->index, 1U);
      EXPECT_EQ(o.stop, "<|end|>");
      EXPECT_EQ(o.match->begin, 8U);
      EXPECT_EQ(o.match->end, 15U);
    }
  }
}

TEST(StopChecker, HoldsBackOnlyWhatMayBegin) {
  StopChecker checker({"END"}, false);
  EXPECT_EQ(checker.push("abcE"), "abc");
  EXPECT_EQ(checker.push("N"), "");
  EXPECT_EQ(checker.push("x"), "ENx");
  EXPECT_EQ(checker.push("EE"), "E");
  EXPECT_EQ(checker.flush(), "E");
  EXPECT_FALSE(checker.match());
}

TEST(StopChecker, SelfOverlapIsFound) {
  EXPECT_EQ(run({"aa", "ab", "c"}, {"aab"}, false).text, "a");
  EXPECT_EQ(run({"ab", "ab", "abc"}, {"ababc"}, false).text, "ab");
}

TEST(StopChecker, TheFirstToEndWins) {
  const Outcome o = run({"xabcd"}, {"abcd", "bc"}, false);
  EXPECT_EQ(o.match->index, 1U);
  EXPECT_EQ(o.text, "xa");
  EXPECT_EQ(run({"xab"}, {"b", "ab"}, false).match->index, 0U);
}

TEST(StopChecker, MayEndFromAPieceOn) {
  StopChecker checker({"aba"}, false);
  EXPECT_EQ(checker.push("xaba", false), "xab") << "the last a may begin another match";
  EXPECT_FALSE(checker.match());
  EXPECT_EQ(checker.push("ba"), "") << "a match began in the previous piece and ends here";
  ASSERT_TRUE(checker.match());
  EXPECT_EQ(checker.match()->begin, 3U);
  EXPECT_EQ(checker.match()->end, 6U);

  StopChecker never({"aba"}, false);
  std::string text = never.push("aba", false);
  text += never.push("caba", false);
  text += never.flush();
  EXPECT_EQ(text, "abacaba");
  EXPECT_FALSE(never.match());
}

TEST(StopChecker, NothingFollowsAMatch) {
  StopChecker checker({"."}, true);
  EXPECT_EQ(checker.push("a.b"), "a.");
  EXPECT_EQ(checker.push("c"), "");
  EXPECT_EQ(checker.flush(), "");
}

TEST(StopChecker, EmptyStopsAreIgnored) {
  EXPECT_EQ(run({"abc"}, {""}, false).text, "abc");
  EXPECT_EQ(run({"abc"}, {}, false).text, "abc");
}

// Compares with plain search, on a small alphabet and random pieces.
TEST(StopChecker, EqualsSearchInTheWhole) {
  std::mt19937 rng(7);
  const auto word = [&](int max) {
    std::string s(1 + rng() % static_cast<unsigned>(max), 'a');
    for (char& c : s) {
      c = static_cast<char>('a' + rng() % 2);
    }
    return s;
  };
  for (int round = 0; round < 3000; ++round) {
    const std::string text = word(30);
    const std::vector<std::string> stops = {word(6), word(6), word(6)};
    std::vector<std::string> pieces;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + rng() % 5;
      pieces.push_back(text.substr(at, n));
      at += n;
    }
    size_t end = std::string::npos;
    size_t begin = 0;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at != std::string::npos && at + stop.size() < end) {
        end = at + stop.size();
        begin = at;
      }
    }
    const Outcome o = run(pieces, stops, false);
    ASSERT_EQ(o.text, end == std::string::npos ? text : text.substr(0, begin));
    ASSERT_EQ(o.match.has_value(), end != std::string::npos);
  }
}

}  // namespace
}  // namespace warprow
