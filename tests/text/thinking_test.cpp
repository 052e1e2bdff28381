// SPDX-License-Identifier: Apache-2.0
// Thinking sections before a grammar: where they end, and which tokens are allowed next.
#include "text/thinking.h"

#include "tests/text/grammar_test_support.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A vocabulary with each tag as one token (optional) and as several tokens.
std::vector<std::string> spellings(bool with_tags) {
  std::vector<std::string> tokens = {
      "<eos>", "<", "</", "think", ">", ">\u010a", ">a", "a", "b", "x</think>b", "\u010a"};
  if (with_tags) {
    tokens.insert(tokens.end(), {"<think>", "</think>"});
  }
  return tokens;
}

class ThinkingTest : public ::testing::Test {
 protected:
  explicit ThinkingTest(bool with_tags = true)
      : spellings_(spellings(with_tags)), tokenizer_(make(spellings_)), tags_(tokenizer_) {}

  static Tokenizer make(const std::vector<std::string>& tokens) {
    constexpr int32_t kNormal = 1;
    constexpr int32_t kControl = 3;
    GgufVocab vocab;
    vocab.model = "gpt2";
    vocab.pre = "smollm";
    vocab.tokens = {tokens.begin(), tokens.end()};
    vocab.types.assign(tokens.size(), kNormal);
    vocab.types.front() = kControl;
    vocab.eos = 0;
    return value_or_throw(Tokenizer::from_gguf(vocab, "test"));
  }

  [[nodiscard]] TokenId id(const std::string& spelling) const {
    return static_cast<TokenId>(std::ranges::find(spellings_, spelling) - spellings_.begin());
  }
  [[nodiscard]] std::vector<std::string> texts(std::span<const TokenId> ids) const {
    std::vector<std::string> out;
    for (const TokenId each : ids) {
      out.push_back(spellings_.at(static_cast<size_t>(each)));
    }
    return out;
  }
  // The number of these tokens that belong to the section.
  [[nodiscard]] size_t section_len(Thinking thinking, const std::vector<std::string>& text) const {
    ThinkingWatch watch(tags_, thinking);
    size_t len = 0;
    while (len < text.size() && watch.take(id(text[len]))) {
      ++len;
    }
    return len;
  }
  [[nodiscard]] GrammarMatcher matcher(const char* regex,
                                       Thinking thinking,
                                       int64_t budget = kNoThinkingBudget) const {
    auto compiler = value_or_throw(GrammarCompiler::make(tokenizer_, std::vector<TokenId>{0}));
    return GrammarMatcher(value_or_throw(compiler.compile(GrammarKind::kRegex, regex))
                              .behind(tags_, thinking, budget));
  }
  [[nodiscard]] std::vector<std::string> allowed(GrammarMatcher& matcher) const {
    test::Mask mask(tokenizer_.vocab_size());
    EXPECT_TRUE(matcher.fill_mask(mask.words()));
    std::vector<TokenId> ids = mask.allowed();
    std::erase_if(ids, [this](TokenId each) { return each >= tokenizer_.vocab_size(); });
    return texts(ids);
  }

  std::vector<std::string> spellings_;
  Tokenizer tokenizer_;
  ThinkingTags tags_;
};

class WithoutThinkToken : public ThinkingTest {
 protected:
  WithoutThinkToken() : ThinkingTest(false) {}
};

TEST_F(ThinkingTest, ASectionEndsWithItsTag) {
  using Words = std::vector<std::string>;
  const Words one = {"a", "b", "</think>", "a"};
  EXPECT_EQ(section_len(Thinking::kNone, one), 0U);
  EXPECT_EQ(section_len(Thinking::kOpen, one), 3U);
  EXPECT_EQ(section_len(Thinking::kMaybe, one), 0U);
  EXPECT_EQ(section_len(Thinking::kMaybe, {"<think>", "a", "</think>", "a"}), 3U);
  EXPECT_EQ(section_len(Thinking::kOpen, {"<think>", "<", "</", "think", ">", "a"}), 5U);
  EXPECT_EQ(section_len(Thinking::kOpen, {"</", "think", ">\u010a", "b"}), 3U);
  for (const Words& no_end : {Words{"</", "a", "think", ">", "b"},
                              Words{"<", "think", ">", "b"},
                              Words{"think", ">", "a", "b", "b"}}) {
    EXPECT_EQ(section_len(Thinking::kOpen, no_end), no_end.size());
  }
}

TEST_F(ThinkingTest, NoTokenGoesPastTheEnd) {
  ThinkingWatch watch(tags_, Thinking::kOpen);
  EXPECT_THAT(texts(watch.forbidden()), ElementsAre("x</think>b"));
  ASSERT_TRUE(watch.take(id("</")));
  EXPECT_THAT(texts(watch.forbidden()), ElementsAre("x</think>b"));
  ASSERT_TRUE(watch.take(id("think")));
  EXPECT_THAT(texts(watch.forbidden()), ElementsAre(">a", "x</think>b")) << "spaces may follow";
  ASSERT_TRUE(watch.take(id(">\u010a")));
  EXPECT_FALSE(watch.is_inside());
  EXPECT_THAT(watch.forbidden(), IsEmpty());
}

TEST_F(ThinkingTest, AGrammarBeginsBehindTheSection) {
  GrammarMatcher open = matcher("ab", Thinking::kOpen);
  std::vector<std::string> all_but_one = spellings_;
  std::erase(all_but_one, "x</think>b");
  EXPECT_EQ(allowed(open), all_but_one);
  for (const char* thought : {"b", "b", "a", "</", "think", "think", "\u010a"}) {
    ASSERT_TRUE(open.accept(id(thought))) << thought;
    EXPECT_FALSE(open.is_stopped());
  }
  EXPECT_EQ(allowed(open), all_but_one);
  GrammarMatcher ahead = open.fork();
  ASSERT_TRUE(ahead.accept(id("</think>")));
  EXPECT_THAT(allowed(ahead), ElementsAre("a")) << "the grammar's first";
  EXPECT_FALSE(ahead.accept(id("b")));
  ASSERT_TRUE(ahead.accept(id("a")));
  ASSERT_TRUE(ahead.accept(id("b")));
  EXPECT_TRUE(ahead.is_stopped());
  EXPECT_EQ(allowed(open), all_but_one) << "a fork's tokens do not affect the original";
}

TEST_F(ThinkingTest, AModelMayThinkFirst) {
  GrammarMatcher undecided = matcher("ab", Thinking::kMaybe);
  EXPECT_THAT(allowed(undecided), ElementsAre("a", "<think>"));
  EXPECT_FALSE(undecided.is_free());
  EXPECT_FALSE(undecided.accept(id("b")));
  EXPECT_THAT(allowed(undecided), ElementsAre("a", "<think>")) << "as before";
  GrammarMatcher thinks = undecided.fork();
  ASSERT_TRUE(thinks.accept(id("<think>")));
  ASSERT_TRUE(thinks.accept(id("b")));
  ASSERT_TRUE(thinks.accept(id("</think>")));
  EXPECT_THAT(allowed(thinks), ElementsAre("a"));
  ASSERT_TRUE(undecided.accept(id("a")));
  EXPECT_THAT(allowed(undecided), ElementsAre("b")) << "too late to think";
}

TEST_F(WithoutThinkToken, OnlyThePromptOpensASection) {
  GrammarMatcher never = matcher("ab", Thinking::kMaybe);
  EXPECT_THAT(allowed(never), ElementsAre("a"));
  GrammarMatcher open = matcher("ab", Thinking::kOpen);
  for (const char* thought : {"b", "</", "think", ">"}) {
    ASSERT_TRUE(open.accept(id(thought)));
  }
  EXPECT_THAT(allowed(open), ElementsAre("a"));
}

// A mask is needed only if it forbids a token.
TEST_F(ThinkingTest, ASectionIsFreeWhereNoTokenGoesPastItsEnd) {
  const Tokenizer plain = make({"<eos>", "</", "think", ">", ">a", "a"});
  const ThinkingTags tags(plain);
  auto compiler = value_or_throw(GrammarCompiler::make(plain, std::vector<TokenId>{0}));
  const Grammar grammar = value_or_throw(compiler.compile(GrammarKind::kRegex, "a"));
  EXPECT_FALSE(GrammarMatcher(grammar).is_free());
  GrammarMatcher open(grammar.behind(tags, Thinking::kOpen));
  EXPECT_TRUE(open.is_free());
  ASSERT_TRUE(open.accept(1));
  EXPECT_TRUE(open.is_free());
  ASSERT_TRUE(open.accept(2));
  EXPECT_FALSE(open.is_free()) << "the token >a would run past the end of the tag";
  ASSERT_TRUE(open.accept(3));
  EXPECT_FALSE(open.is_free());
}

TEST_F(ThinkingTest, ASpentBudgetEndsTheSection) {
  GrammarMatcher open = matcher("ab", Thinking::kOpen, 2);
  ASSERT_TRUE(open.accept(id("b")));
  EXPECT_GT(allowed(open).size(), 5U) << "one token is left";
  GrammarMatcher earlier = open.fork();
  ASSERT_TRUE(open.accept(id("b")));
  EXPECT_THAT(allowed(open), ElementsAre("</think>"));
  EXPECT_FALSE(open.is_free());
  EXPECT_FALSE(open.is_stopped());
  ASSERT_TRUE(open.accept(id("</think>")));
  EXPECT_THAT(allowed(open), ElementsAre("a")) << "the grammar's first";
  ASSERT_TRUE(earlier.accept(id("</think>")));
  EXPECT_THAT(allowed(earlier), ElementsAre("a")) << "a section may end before";
  GrammarMatcher none = matcher("ab", Thinking::kOpen, 0);
  EXPECT_THAT(allowed(none), ElementsAre("</think>"));
}

TEST_F(ThinkingTest, ABudgetCountsBehindTheOpeningTag) {
  GrammarMatcher undecided = matcher("ab", Thinking::kMaybe, 1);
  EXPECT_THAT(allowed(undecided), ElementsAre("a", "<think>"));
  ASSERT_TRUE(undecided.accept(id("<think>")));
  EXPECT_GT(allowed(undecided).size(), 5U);
  ASSERT_TRUE(undecided.accept(id("b")));
  EXPECT_THAT(allowed(undecided), ElementsAre("</think>"));
}

TEST_F(ThinkingTest, AnyTextComesBehindASectionWithABudget) {
  GrammarMatcher open(Grammar::any().behind(tags_, Thinking::kOpen, 1));
  EXPECT_FALSE(open.is_free()) << "x</think>b would run past the end of the tag";
  ASSERT_TRUE(open.accept(id("b")));
  GrammarMatcher ahead = open.fork();
  EXPECT_THAT(allowed(open), ElementsAre("</think>"));
  for (const char* word : {"</think>", "b", "<think>", "x</think>b", "<eos>"}) {
    ASSERT_TRUE(open.accept(id(word))) << word;
    EXPECT_TRUE(open.is_free());
    EXPECT_FALSE(open.is_stopped());
    EXPECT_EQ(allowed(open), spellings_);
  }
  EXPECT_THAT(allowed(ahead), ElementsAre("</think>")) << "the fork is where it was";
  GrammarMatcher undecided(Grammar::any().behind(tags_, Thinking::kMaybe, 1));
  EXPECT_TRUE(undecided.is_free());
}

TEST_F(WithoutThinkToken, ATagOfSeveralTokensIsSpelled) {
  EXPECT_FALSE(tags_.can_close()) << "nothing in this vocabulary goes on behind '<'";
  GrammarMatcher without_effect = matcher("a", Thinking::kOpen, 0);
  EXPECT_GT(allowed(without_effect).size(), 5U);
  const Tokenizer letters =
      make({"<eos>", "<", "</", "/", "t", "h", "i", "n", "k", "think", ">", "a"});
  const ThinkingTags tags(letters);
  ASSERT_TRUE(tags.can_close());
  ThinkingWatch watch(tags, Thinking::kOpen, 1);
  const auto closing = [&] { return std::vector(watch.closing().begin(), watch.closing().end()); };
  EXPECT_THAT(closing(), IsEmpty());
  ASSERT_TRUE(watch.take(11));
  EXPECT_THAT(closing(), ElementsAre(1, 2));
  ASSERT_TRUE(watch.take(2));
  EXPECT_THAT(closing(), ElementsAre(4, 9));
  ASSERT_TRUE(watch.take(9));
  EXPECT_THAT(closing(), ElementsAre(10));
  ASSERT_TRUE(watch.take(10));
  EXPECT_FALSE(watch.is_inside());
  EXPECT_THAT(closing(), IsEmpty());
}

}  // namespace
}  // namespace warprow
