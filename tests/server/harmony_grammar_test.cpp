// SPDX-License-Identifier: Apache-2.0
// Structured answers and forced calls in gpt-oss's format: where the grammar begins, and what may precede it.
#include "server/chat/harmony_grammar.h"

#include "tests/support/source_path.h"
#include "tests/text/text_test_support.h"
#include "text/chat_template.h"
#include "text/grammar.h"
#include "text/tokenizer.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::HasSubstr;

constexpr TokenId kReturn = 0;

// A vocabulary of harmony's tokens and single characters.
Tokenizer make_tokenizer() {
  constexpr int32_t kNormal = 1;
  constexpr int32_t kControl = 3;
  std::vector<std::string> tokens = {"<|return|>",
                                     "<|call|>",
                                     "<|start|>",
                                     "<|channel|>",
                                     "<|constrain|>",
                                     "<|message|>",
                                     "<|end|>"};
  GgufVocab vocab;
  vocab.types.assign(tokens.size(), kControl);
  for (char c = '!'; c <= '~'; ++c) {
    tokens.emplace_back(1, c);
  }
  tokens.emplace_back("\u0120");  // a space
  tokens.emplace_back("\u010a");  // a line end
  vocab.types.resize(tokens.size(), kNormal);
  vocab.model = "gpt2";
  vocab.pre = "smollm";
  vocab.tokens = {tokens.begin(), tokens.end()};
  vocab.eos = kReturn;
  return value_or_throw(Tokenizer::from_gguf(vocab, "test"));
}

class HarmonyGrammar : public ::testing::Test {
 protected:
  HarmonyGrammar()
      : tokenizer_(make_tokenizer()),
        compiler_(value_or_throw(GrammarCompiler::make(tokenizer_, std::vector<TokenId>{0, 1}))) {}

  // "whole" if the text is taken and nothing may follow, "part" if it is taken, else the text up to the first token
  // that is refused.
  std::string take(const StructuredOutput& wanted, const std::string& text) {
    Grammar grammar = value_or_throw(compiler_.compile(wanted.kind, wanted.text));
    if (!wanted.preamble.empty()) {
      grammar =
          grammar.behind(value_or_throw(compiler_.compile(GrammarKind::kLark, wanted.preamble)));
    }
    GrammarMatcher matcher(grammar);
    std::string taken;
    for (const TokenId id : tokenizer_.encode(text, false)) {
      GrammarMatcher ahead = matcher.fork();
      std::vector<uint32_t> mask(static_cast<size_t>(tokenizer_.vocab_size()) / 32 + 1);
      EXPECT_TRUE(matcher.fill_mask(mask));
      const auto bit = static_cast<size_t>(id);
      const bool allowed = (mask[bit / 32] >> (bit % 32) & 1U) != 0;
      EXPECT_EQ(ahead.accept(id).has_value(), allowed) << taken;
      if (!matcher.accept(id)) {
        return taken;
      }
      EXPECT_FALSE(matcher.is_free());
      taken += tokenizer_.token_bytes(id);
    }
    return matcher.is_stopped() ? "whole" : "part";
  }

  Tokenizer tokenizer_;
  GrammarCompiler compiler_;
};

constexpr const char* kThought = "<|channel|>analysis<|message|>Hm {x}.<|end|><|start|>assistant";
constexpr const char* kNote = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant";

TEST_F(HarmonyGrammar, AStructuredAnswerIsTheFinalMessage) {
  StructuredOutput wanted{.kind = GrammarKind::kChoice, .text = R"(["yes", "no"])"};
  wanted.preamble = harmony_answer_preamble();
  const std::string final = "<|channel|>final<|message|>";
  EXPECT_EQ(take(wanted, final + "yes"), "whole");
  EXPECT_EQ(take(wanted, kThought + final + "no"), "whole");
  EXPECT_EQ(take(wanted, std::string(kNote) + kThought + final + "no"), "whole");
  EXPECT_EQ(take(wanted, "<|channel|>final <|constrain|>json<|message|>yes"), "whole");
  EXPECT_EQ(take(wanted, kThought + final + "n"), "part");
  EXPECT_EQ(take(wanted, kThought), "part");
  EXPECT_EQ(take(wanted, final + "maybe"), "<|channel|>final<|message|>");
  EXPECT_EQ(take(wanted, "yes"), "");
  EXPECT_EQ(take(wanted, "<|channel|>other<|message|>"), "<|channel|>");
  EXPECT_EQ(take(wanted, "<|channel|>analysis<|message|>x<|return|>"),
            "<|channel|>analysis<|message|>x")
      << "no end without an answer";
  EXPECT_EQ(take(wanted, "<|channel|>analysis<|message|>x<|start|>"),
            "<|channel|>analysis<|message|>x");
}

ToolOptions two_tools() {
  ToolOptions options;
  options.tools = OrderedJson::parse(R"([
    {"type": "function", "function": {"name": "add", "parameters": {"type": "object",
      "properties": {"n": {"$ref": "#/$defs/N"}}, "required": ["n"], "additionalProperties": false,
      "$defs": {"N": {"type": "integer"}}}}},
    {"type": "function", "function": {"name": "list"}}])");
  return options;
}

TEST_F(HarmonyGrammar, ANamedFunctionIsCalled) {
  ToolOptions options = two_tools();
  options.choice = ToolOptions::Choice::kNamed;
  options.name = "add";
  const StructuredOutput wanted = value_or_throw(harmony_tool_grammar(options));
  const std::string header = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>";
  EXPECT_EQ(take(wanted, header + R"({"n":7})"), "whole");
  EXPECT_EQ(take(wanted, std::string(kThought) + kNote + header + R"({"n":7})"), "whole");
  EXPECT_EQ(take(wanted, header + R"({"n":"7"})"), header + R"({"n":)");
  EXPECT_EQ(take(wanted, "<|channel|>final"), "<|channel|>");
  EXPECT_EQ(take(wanted, "<|channel|>commentary to=functions.list"),
            "<|channel|>commentary to=functions.");
}

TEST_F(HarmonyGrammar, OneOfTheFunctionsIsCalled) {
  ToolOptions options = two_tools();
  options.choice = ToolOptions::Choice::kRequired;
  const StructuredOutput wanted = value_or_throw(harmony_tool_grammar(options));
  const auto header = [](const std::string& name) {
    return "<|channel|>commentary to=functions." + name + " <|constrain|>json<|message|>";
  };
  EXPECT_EQ(take(wanted, kThought + header("add") + R"({"n":7})"), "whole");
  EXPECT_EQ(take(wanted, header("list") + R"({"any":[1]})"), "whole");
  EXPECT_EQ(take(wanted, header("list") + "[1]"), header("list"));
  EXPECT_EQ(take(wanted, header("add") + R"({"any")"), header("add") + R"({")");
  options.tools[0]["function"]["name"] = R"(a" | /.*/)";
  const auto refused = harmony_tool_grammar(options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message,
              HasSubstr("tools: the name 'a\" | /.*/' has other characters"));
}

// Several turns with a tool. Reasoning is shown until an answer has followed it.
TEST(HarmonyTemplate, TurnsWithTools) {
  const ChatTemplate chat_template = value_or_throw(ChatTemplate::parse(
      {test::read_file(test::source_path("tests/text/templates/harmony.jinja")), "", {}}));
  ChatRequest request;
  const OrderedJson function = {{"name", "add"}, {"arguments", R"({"n": 7})"}};
  request.messages = {{{"role", "system"}, {"content", "Be brief."}},
                      {{"role", "user"}, {"content", "7?"}},
                      {{"role", "assistant"},
                       {"content", ""},
                       {"thinking", "I add."},
                       {"tool_calls", {{{"type", "function"}, {"function", function}}}}},
                      {{"role", "tool"}, {"content", "\"8\""}}};
  request.tools = two_tools().tools;
  const std::string head =
      "<|start|>system<|message|>Effort: medium. Channels: analysis, commentary, final.<|end|>"
      "<|start|>developer<|message|>Be brief.\nnamespace functions {\n// \ntype add = (_: {n: "
      "any}) => any;\n"
      "// \ntype list = () => any;\n}<|end|><|start|>user<|message|>7?<|end|>";
  const std::string thought = "<|start|>assistant<|channel|>analysis<|message|>I add.<|end|>";
  const std::string call =
      "<|start|>assistant to=functions.add<|channel|>commentary json<|message|>{\"n\": 7}<|call|>"
      "<|start|>functions.add to=assistant<|channel|>commentary<|message|>\"\\\"8\\\"\"<|end|>";
  EXPECT_EQ(value_or_throw(chat_template.render(request)),
            head + thought + call + "<|start|>assistant");
  request.messages.push_back({{"role", "assistant"}, {"content", "8"}});
  request.messages.push_back({{"role", "user"}, {"content", "Sure?"}});
  EXPECT_EQ(value_or_throw(chat_template.render(request)),
            head + call +
                "<|start|>assistant<|channel|>final<|message|>8<|end|><|start|>user<|message|>Sure?"
                "<|end|><|start|>assistant");
}

}  // namespace
}  // namespace warprow
