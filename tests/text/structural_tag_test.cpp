// SPDX-License-Identifier: Apache-2.0
// Structural tags: which texts each format allows, by the grammar that it becomes.
#include "text/structural_tag.h"

#include "tests/text/grammar_test_support.h"

#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr TokenId kEos = 0;

// A token for each printable character but the space, and some special ones.
const Tokenizer& tokenizer() {
  static const Tokenizer made = [] {
    std::vector<std::string> texts = {"<eos>", "<call>", "</call>", "<call", "\u0120", "\u010a"};
    for (char c = '!'; c <= '~'; ++c) {
      texts.emplace_back(1, c);
    }
    GgufVocab vocab;
    vocab.model = "gpt2";
    vocab.pre = "smollm";
    vocab.tokens = {texts.begin(), texts.end()};
    vocab.types.assign(texts.size(), 1);
    for (const int special : {0, 1, 2}) {
      vocab.types[static_cast<size_t>(special)] = 3;
    }
    vocab.eos = kEos;
    return value_or_throw(Tokenizer::from_gguf(vocab, "test"));
  }();
  return made;
}

// The text ends in the middle, is refused, or may end.
enum class Fit { kRefused, kBeginning, kWhole };

Fit fit_of(const json& tag, std::string_view text) {
  static GrammarCompiler compiler =
      value_or_throw(GrammarCompiler::make(tokenizer(), std::vector<TokenId>{kEos}));
  const Result<Grammar> grammar = compiler.compile(GrammarKind::kStructuralTag, tag.dump());
  EXPECT_TRUE(grammar) << tag << ": " << (grammar ? "" : grammar.error().message);
  if (!grammar) {
    return Fit::kRefused;
  }
  GrammarMatcher matcher(*grammar);
  for (const TokenId token : tokenizer().encode(text, false)) {
    if (!matcher.accept(token)) {
      return Fit::kRefused;
    }
  }
  if (matcher.is_stopped()) {
    return Fit::kWhole;
  }
  test::Mask mask(tokenizer().vocab_size());
  EXPECT_TRUE(matcher.fill_mask(mask.words()));
  return mask.allows(kEos) ? Fit::kWhole : Fit::kBeginning;
}

json of_format(const json& format) { return {{"type", "structural_tag"}, {"format", format}}; }

struct Case {
  Fit fit;
  const char* text;
};

void check(const json& tag, const std::vector<Case>& cases) {
  for (const Case& each : cases) {
    EXPECT_EQ(fit_of(tag, each.text), each.fit) << tag << "\n" << each.text;
  }
}
void check_format(const json& format, const std::vector<Case>& cases) {
  check(of_format(format), cases);
}

const json kNumber = {{"type", "json_schema"}, {"json_schema", {{"type", "integer"}}}};
const json kAnyText = {{"type", "any_text"}};

json text(const char* value) { return {{"type", "const_string"}, {"value", value}}; }
json tag(const char* begin, const json& content, const json& end) {
  return {{"type", "tag"}, {"begin", begin}, {"content", content}, {"end", end}};
}

TEST(StructuralTag, PartsOfAText) {
  check_format(text("a \"b\""),
               {{Fit::kWhole, "a \"b\""}, {Fit::kBeginning, "a"}, {Fit::kRefused, "b"}});
  check_format({{"type", "regex"}, {"pattern", "[a-c]+/\\d"}},
               {{Fit::kWhole, "abc/7"}, {Fit::kRefused, "abd"}, {Fit::kBeginning, "a/"}});
  check_format(kNumber, {{Fit::kWhole, "12"}, {Fit::kRefused, "x"}});
  check_format(kAnyText, {{Fit::kWhole, ""}, {Fit::kWhole, "a\n<b> \"c\""}});
  check_format({{"type", "any_text"}, {"excludes", {"(x)", "no"}}},
               {{Fit::kWhole, "n o (x"}, {Fit::kRefused, "a (x)"}, {Fit::kRefused, "nno"}});
}

TEST(StructuralTag, Compositions) {
  check_format({{"type", "sequence"}, {"elements", {text("a"), kNumber, text("z"), kAnyText}}},
               {{Fit::kWhole, "a12z anything"}, {Fit::kRefused, "az"}, {Fit::kBeginning, "a1"}});
  check_format({{"type", "or"}, {"elements", {text("yes"), text("no")}}},
               {{Fit::kWhole, "yes"}, {Fit::kWhole, "no"}, {Fit::kRefused, "nes"}});
  const json ab = {{"type", "sequence"}, {"elements", {text("a"), text("b")}}};
  check_format({{"type", "optional"}, {"content", ab}},
               {{Fit::kWhole, ""}, {Fit::kWhole, "ab"}, {Fit::kRefused, "aba"}});
  check_format({{"type", "plus"}, {"content", ab}},
               {{Fit::kBeginning, ""}, {Fit::kWhole, "ab"}, {Fit::kWhole, "abab"}});
  check_format({{"type", "star"}, {"content", ab}},
               {{Fit::kWhole, ""}, {Fit::kWhole, "abab"}, {Fit::kBeginning, "aba"}});
  check_format({{"type", "repeat"}, {"min", 2}, {"max", 3}, {"content", ab}},
               {{Fit::kBeginning, "ab"},
                {Fit::kWhole, "abab"},
                {Fit::kWhole, "ababab"},
                {Fit::kRefused, "abababa"}});
  check_format({{"type", "repeat"}, {"min", 1}, {"max", -1}, {"content", ab}},
               {{Fit::kBeginning, ""}, {Fit::kWhole, "abababab"}});
}

TEST(StructuralTag, ATagEndsWithItsEnd) {
  check_format(tag("<t>", kAnyText, "</t>"),
               {{Fit::kWhole, "<t>a < b </ \n</t>"},
                {Fit::kBeginning, "<t>a"},
                {Fit::kRefused, "<t>a</t>b"},
                {Fit::kRefused, "a"}});
  check_format({{"type", "sequence"},
                {"elements", {tag("<t>", kAnyText, {"</t>", "|"}), text("\n"), kNumber}}},
               {{Fit::kWhole, "<t>a</t>\n5"}, {Fit::kWhole, "<t>|\n5"}, {Fit::kRefused, "<t>a|b"}});
  check_format(tag("[", {{"type", "optional"}, {"content", kNumber}}, "]"),
               {{Fit::kWhole, "[]"}, {Fit::kWhole, "[3]"}, {Fit::kRefused, "[x"}});
}

const json kGet = tag("<f=get>", kNumber, "</f>");
const json kSay = tag("<f=say>", kAnyText, "</f>");

TEST(StructuralTag, TriggersBeginTags) {
  json format = {{"type", "triggered_tags"}, {"triggers", {"<f="}}, {"tags", {kGet, kSay}}};
  check_format(format,
               {{Fit::kWhole, ""},
                {Fit::kWhole, "no call, 1 < 2"},
                {Fit::kWhole, "so: <f=get>5</f> and <f=say>a < b</f>.\nend"},
                {Fit::kBeginning, "so: <f=get>5"},
                {Fit::kRefused, "so: <f=get>x"},
                {Fit::kRefused, "<f=put"}});
  format["stop_after_first"] = true;
  check_format(format,
               {{Fit::kWhole, "no call"},
                {Fit::kWhole, "a <f=get>5</f>"},
                {Fit::kRefused, "a <f=get>5</f>b"}});
  format["at_least_one"] = true;
  check_format(format,
               {{Fit::kWhole, "<f=get>5</f>"},
                {Fit::kBeginning, ""},
                {Fit::kRefused, "a"},
                {Fit::kRefused, "<f=get>5</f>b"}});
  format["stop_after_first"] = false;
  check_format(format, {{Fit::kWhole, "<f=get>5</f> b <f=say></f>"}, {Fit::kRefused, "a"}});
  format["at_least_one"] = false;
  format["excludes"] = {"bad"};
  check_format(format, {{Fit::kWhole, "a <f=get>5</f> b"}, {Fit::kRefused, "a bad"}});
}

TEST(StructuralTag, TriggersInATag) {
  check_format(
      tag("<t>", {{"type", "triggered_tags"}, {"triggers", {"<f="}}, {"tags", {kGet}}}, "</t>"),
      {{Fit::kWhole, "<t>a <f=get>5</f> b</t>"},
       {Fit::kWhole, "<t></t>"},
       {Fit::kRefused, "<t>a</t>b"},
       {Fit::kRefused, "<t><f=get>x"}});
}

TEST(StructuralTag, TheOlderForm) {
  check({{"type", "structural_tag"},
         {"structures",
          {{{"begin", "<f=get>"}, {"schema", {{"type", "integer"}}}, {"end", "</f>"}},
           {{"begin", "<f=all>"}, {"end", "</f>"}}}},
         {"triggers", {"<f="}}},
        {{Fit::kWhole, "a <f=get>5</f> b <f=all>{}</f>"},
         {Fit::kRefused, "<f=get>x"},
         {Fit::kRefused, "<f=all>5"}});
}

TEST(StructuralTag, ListsOfTags) {
  json format = {{"type", "tags_with_separator"}, {"tags", {kGet, kSay}}, {"separator", ","}};
  check_format(format,
               {{Fit::kWhole, ""},
                {Fit::kWhole, "<f=get>5</f>,<f=say>a</f>"},
                {Fit::kBeginning, "<f=get>5</f>,"},
                {Fit::kRefused, "a"}});
  format["at_least_one"] = true;
  check_format(format, {{Fit::kBeginning, ""}, {Fit::kWhole, "<f=say></f>"}});
  format["stop_after_first"] = true;
  check_format(format, {{Fit::kWhole, "<f=get>5</f>"}, {Fit::kRefused, "<f=get>5</f>,"}});
}

TEST(StructuralTag, DispatchNeedsNoTag) {
  json format = {
      {"type", "dispatch"},
      {"rules", json::array({json::array({"n=", kNumber}), json::array({"s=", text("x;")})})}};
  check_format(format,
               {{Fit::kWhole, "any n=5 s=x; n=6"}, {Fit::kRefused, "n=x"}, {Fit::kRefused, "s=y"}});
  format["loop"] = false;
  check_format(format, {{Fit::kWhole, "a s=x;"}, {Fit::kRefused, "a s=x;b"}});
}

// Where a text of the client spells a special token, the model writes the token.
TEST(StructuralTag, SpecialTokensAreMeantByTheirText) {
  check_format(tag("<call>", kNumber, "</call>"),
               {{Fit::kWhole, "<call>5</call>"}, {Fit::kRefused, "<call>x"}});
  check_format(
      {{"type", "triggered_tags"},
       {"triggers", {"<call"}},
       {"tags", {tag("<call>n=", kNumber, "</call>"), tag("<call>m", kAnyText, "</call>")}}},
      {{Fit::kWhole, "a <call>n=5</call> b"},
       {Fit::kWhole, "<call>m any < text</call>"},
       {Fit::kRefused, "a <call>x"}});
  const SpecialTokens specials(tokenizer());
  EXPECT_EQ(specials.at("<call>n").value_or(std::pair(size_t{0}, TokenId{0})),
            std::pair(std::string_view("<call>").size(), TokenId{1}));
  EXPECT_FALSE(specials.at("<call"));
  EXPECT_FALSE(specials.at(""));
}

TEST(StructuralTag, MistakesAreNamedByTheirPlace) {
  const SpecialTokens specials(tokenizer());
  const auto refusal = [&](const json& root) {
    const Result<std::string> lark = structural_tag_lark(root.dump(), specials);
    EXPECT_FALSE(lark) << root;
    return lark ? "" : lark.error().message;
  };
  const auto of = [&](const json& format) { return refusal(of_format(format)); };
  EXPECT_THAT(refusal(json::array()), HasSubstr("not a JSON object"));
  EXPECT_THAT(refusal({{"type", "x"}}), HasSubstr("type: must be structural_tag"));
  EXPECT_THAT(refusal({{"type", "structural_tag"}}), HasSubstr("format: must be an object"));
  EXPECT_THAT(of(5), HasSubstr("format: must be an object whose type"));
  EXPECT_THAT(of({{"type", "text"}}), HasSubstr("format: must be an object whose type"));
  EXPECT_THAT(of({{"type", "grammar"}}), HasSubstr("format.type grammar: not supported yet"));
  EXPECT_THAT(of({{"type", "const_string"}}), HasSubstr("format.value: must be text"));
  EXPECT_THAT(of({{"type", "json_schema"}, {"json_schema", 3}}),
              HasSubstr("format.json_schema: must be a JSON schema"));
  EXPECT_THAT(of({{"type", "json_schema"}, {"json_schema", json::object()}, {"style", "glm_xml"}}),
              HasSubstr("format.style: not supported yet"));
  EXPECT_THAT(of({{"type", "any_text"}, {"max_tokens", 3}}),
              HasSubstr("format.max_tokens: not supported yet"));
  EXPECT_THAT(of({{"type", "or"}, {"elements", json::array()}}),
              HasSubstr("format.elements: must be a list"));
  EXPECT_THAT(of({{"type", "sequence"}, {"elements", {kAnyText, text("a")}}}),
              HasSubstr("format.elements[0]: must be the last element"));
  EXPECT_THAT(of({{"type", "star"}, {"content", kAnyText}}),
              HasSubstr("format.content: must be a format that ends"));
  EXPECT_THAT(of({{"type", "repeat"}, {"min", 3}, {"max", 2}, {"content", text("a")}}),
              HasSubstr("format.max: must be -1 or a whole number of [3, 2000]"));
  EXPECT_THAT(of(tag("a", 3, "b")), HasSubstr("format.content: must be an object"));
  EXPECT_THAT(of(tag("a", kAnyText, 3)), HasSubstr("format.end: must be text"));
  EXPECT_THAT(of({{"type", "triggered_tags"}, {"triggers", {"x"}}, {"tags", {kGet}}}),
              HasSubstr("format.tags[0].begin: must be a text that begins with one"));
  EXPECT_THAT(of({{"type", "triggered_tags"}, {"triggers", {""}}, {"tags", {kGet}}}),
              HasSubstr("format.triggers: must be a list"));
  EXPECT_THAT(
      of({{"type", "triggered_tags"}, {"triggers", {"<f"}}, {"tags", {kGet}}, {"at_least_one", 1}}),
      HasSubstr("format.at_least_one: must be true or false"));
  EXPECT_THAT(of({{"type", "dispatch"}, {"rules", json::array({json::array({"a"})})}}),
              HasSubstr("format.rules[0]: must be a pair"));
}

}  // namespace
}  // namespace warprow
