// SPDX-License-Identifier: Apache-2.0
#include "server/chat/tool_parser.h"

#include "server/chat/counted_parser.h"
#include "server/chat/tool_grammar.h"
#include "text/byte_text.h"
#include "text/grammar.h"

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// A parser's result for a text that is split into pieces. A call is "name(arguments)".
struct Parsed {
  std::string content;
  std::string reasoning;
  std::vector<std::string> calls;
  bool operator==(const Parsed&) const = default;
};

Parsed parse(const ChatParserOptions& options, const std::string& text, size_t step) {
  const auto parser = make_chat_parser(options);
  ChatPiece all;
  for (size_t at = 0; at < text.size(); at += step) {
    all.append(parser->push(std::string_view(text).substr(at, step)));
  }
  all.append(parser->finish());
  Parsed out{all.content, all.reasoning, {}};
  for (const ToolCallPiece& piece : all.calls) {
    if (!piece.name.empty()) {
      EXPECT_EQ(piece.index, static_cast<int32_t>(out.calls.size()));
      EXPECT_EQ(piece.id, options.id_prefix + std::to_string(piece.index));
      out.calls.push_back(piece.name + "(");
    }
    EXPECT_FALSE(out.calls.empty());
    out.calls.back() += piece.arguments;
  }
  for (std::string& call : out.calls) {
    call += ")";
  }
  return out;
}

// The result must not depend on the split: pieces of any length, and two pieces split anywhere.
void expect(const ChatParserOptions& options, const std::string& text, const Parsed& wanted) {
  for (size_t step = 1; step <= text.size() + 1; ++step) {
    const Parsed got = parse(options, text, step);
    EXPECT_EQ(got.content, wanted.content) << text << " by " << step;
    EXPECT_EQ(got.reasoning, wanted.reasoning) << text << " by " << step;
    EXPECT_EQ(got.calls, wanted.calls) << text << " by " << step;
  }
}

struct Sample {
  std::string text;
  Parsed wanted;
};

void expect_all(const ChatParserOptions& options, const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) {
    expect(options, sample.text, sample.wanted);
  }
}

// Samples are shaped as the models' cards and vLLM's tests of its parsers show their answers.
TEST(ToolParser, Hermes) {
  const ChatParserOptions options{.format = ToolFormat::kHermes, .id_prefix = "c"};
  expect_all(
      options,
      {{"just text < that <tool is > fine ", {"just text < that <tool is > fine ", "", {}}},
       {"Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"}{\\\"<\", \"b\": "
        "[1, 2]}}\n"
        "</tool_call>\n<tool_call>\n{\"arguments\": {}, \"name\": \"g\"}\n</tool_call>",
        {"Let me see.", "", {R"(f({"a": "}{\"<", "b": [1, 2]}))", "g({})"}}},
       {"<tool_call>{\"name\": \"f\"}</tool_call>", {"", "", {"f({})"}}},
       {"<tool_call>{\"name\": \"f\", \"arguments\": null}</tool_call>", {"", "", {"f({})"}}},
       // Escapes stay as the model wrote them. A marker inside a JSON string is text.
       {R"(<tool_call>{"name": "\u0066", "arguments": {"a": "Z\u00fcrich \ud83d\ude00 \\", "b": "</tool_call>"}}</tool_call>)",
        {"", "", {R"(f({"a": "Z\u00fcrich \ud83d\ude00 \\", "b": "</tool_call>"}))"}}},
       {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"Zürich 😀\"}}</tool_call>",
        {"", "", {"f({\"a\": \"Zürich 😀\"})"}}},
       {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>\n\nDone < so.\n",
        {"Done < so.", "", {"f({})"}}},
       {"a <tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call> b "
        "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> c",
        {"a b c", "", {"f({})", "g({})"}}},
       // Several calls in one section without an end tag.
       {"<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n{\"name\": \"g\", \"arguments\": {}}",
        {"", "", {"f({})", "g({})"}}}});
}

TEST(ToolParser, HermesCutOff) {
  const ChatParserOptions options{.format = ToolFormat::kHermes};
  const std::string one = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  expect_all(
      options,
      {{"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1", {"", "", {R"(f({"a": 1))"}}},
       {"<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\", {"", "", {R"(f({"a": "\))"}}},
       {"<tool_call>{\"name\": \"f\"", {"", "", {"f()"}}},
       {"Hm <tool_call>{\"nam", {"Hm <tool_call>{\"nam", "", {}}},
       {"Hm <tool_call>\n", {"Hm <tool_call>\n", "", {}}},
       {"Hm <tool_ca", {"Hm <tool_ca", "", {}}},
       {one + "\n<tool_call>{\"nam", {"", "", {"f({})"}}},
       {one + "\n<tool_ca", {"<tool_ca", "", {"f({})"}}}});
}

// A text that is not a call becomes content, including its opening marker.
TEST(ToolParser, HermesThatIsNoCall) {
  const ChatParserOptions options{.format = ToolFormat::kHermes};
  for (const char* text : {"<tool_call>{\"x\": 1}</tool_call>",
                           "Use <tool_call>\n<function=f>\n</function>\n</tool_call> here",
                           "<tool_call></tool_call>",
                           "<tool_call>f(1)</tool_call>",
                           "<tool_call>{\"name\": 5, \"arguments\": {}}</tool_call>",
                           "<tool_call>{name: \"f\"}</tool_call>",
                           "<tool_call>{\"arguments\": {\"a\": ]}, \"name\": \"f\"}</tool_call>",
                           "<tool_call>{\"arguments\": \"{}\", \"name\": \"f\"}</tool_call>",
                           "<tool_call>{\"arguments\": [1], \"name\": \"f\"}</tool_call>"}) {
    expect(options, text, {text, "", {}});
  }
}

// A stream has already sent the first name.
TEST(ToolParser, ASecondNameIsNotTaken) {
  const ChatParserOptions options{.format = ToolFormat::kHermes};
  expect(options,
         R"(<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>)",
         {R"(: "g", "arguments": {}}</tool_call>)", "", {"f()"}});
}

// A complete answer can still drop a broken call; a stream cannot.
TEST(ToolParser, AWholeAnswerWithABrokenCallIsContent) {
  const std::string good = "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>";
  const std::string thought = "<think>t</think>\n\n";
  for (const std::string& bad :
       {std::string(R"(<tool_call>{"name": "f", "arguments": {"a": }}</tool_call>)"),
        std::string(R"(<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>)"),
        std::string(R"(<tool_call>{"name": "f", "arguments": {}, "arguments": {}}</tool_call>)"),
        std::string(R"(<tool_call>{"name": "f", "name": "g", "arguments": {}}</tool_call>)"),
        std::string(R"(<tool_call>{"name": "f", "arguments": {'a': 1}}</tool_call>)"),
        std::string(R"(<tool_call>{"name": "f", "arguments": {"a": 1)"),
        std::string(R"(<tool_call>{"name": "f", "arguments": 3}</tool_call>)"),
        good + "<tool_call>nothing</tool_call>"}) {
    const auto whole = [&](bool cut_off) {
      const auto parser =
          make_chat_parser({.format = ToolFormat::kHermes, .reasoning = ReasoningFormat::kThink});
      return parse_whole(*parser, thought + bad, cut_off);
    };
    EXPECT_EQ(whole(false).content, bad);
    EXPECT_EQ(whole(false).reasoning, "t");
    EXPECT_TRUE(whole(false).calls.empty()) << bad;
    EXPECT_FALSE(whole(true).calls.empty()) << bad;
  }
  const auto parser = make_chat_parser({.format = ToolFormat::kHermes});
  EXPECT_EQ(parse_whole(*parser, "Hm." + good, false).calls.size(), 2U);
  EXPECT_FALSE(parser->failed());
  const auto forced = make_chat_parser({.format = ToolFormat::kNamed, .function = "f"});
  EXPECT_EQ(parse_whole(*forced, R"({"a": 1)", false).content, "");
}

TEST(ToolParser, FoundCallsAreCounted) {
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  for (const bool streams : {false, true}) {
    std::vector<bool> found;
    const auto counted = [&] {
      found.clear();
      return count_tool_calls(make_chat_parser({.format = ToolFormat::kHermes}),
                              streams,
                              [&found](bool one) { found.push_back(one); });
    };
    EXPECT_FALSE(parse_whole(*counted(), "Hm. " + call, false).calls.empty());
    EXPECT_EQ(found, std::vector<bool>{true});
    EXPECT_EQ(parse_whole(*counted(), "Hm.", false).content, "Hm.");
    EXPECT_EQ(found, std::vector<bool>{false});
    const auto parser = counted();
    (void)parser->push("Hm. ");
    (void)parser->push(call);
    (void)parser->finish();
    EXPECT_EQ(found, streams ? (std::vector<bool>{false, true}) : std::vector<bool>{true});
  }
}

TEST(ToolParser, Llama3) {
  const ChatParserOptions options{.format = ToolFormat::kLlama3};
  expect_all(
      options,
      {{R"({"name": "f", "parameters": {"a": 1}})", {"", "", {R"(f({"a": 1}))"}}},
       {R"({"type": "function", "name": "f", "parameters": {"a": {"b": "}"}}})",
        {"", "", {R"(f({"a": {"b": "}"}}))"}}},
       {R"({"name": "f", "arguments": {"a": "\u007d\""}})", {"", "", {R"(f({"a": "\u007d\""}))"}}},
       {R"(<|python_tag|>{"name": "f", "parameters": {}}; {"name": "g", "parameters": {"b": null}})",
        {"", "", {"f({})", R"(g({"b": null}))"}}},
       {"\n\n{\"name\": \"f\", \"parameters\": {}}\n{\"name\": \"g\", \"parameters\": null}\n",
        {"", "", {"f({})", "g({})"}}},
       {"{\"name\": \"f\", \"parameters\": {}}; that is it", {"that is it", "", {"f({})"}}},
       {R"({"name": "f", "parameters": {"a": "x)", {"", "", {R"(f({"a": "x))"}}},
       {R"({"name": "f", "par)", {"", "", {"f()"}}},
       {R"({"na)", {R"({"na)", "", {}}},
       {"an answer {with} braces", {"an answer {with} braces", "", {}}},
       {R"(<|python_tag|>brave_search.call(query="x"))",
        {R"(<|python_tag|>brave_search.call(query="x"))", "", {}}},
       {R"(I call {"name": "f", "parameters": {}})",
        {R"(I call {"name": "f", "parameters": {}})", "", {}}},
       {R"( {"colour": "red"})", {R"( {"colour": "red"})", "", {}}}});
}

TEST(ToolParser, Mistral) {
  const ChatParserOptions options{.format = ToolFormat::kMistral};
  expect_all(
      options,
      {{R"([TOOL_CALLS][{"name": "f", "arguments": {"a": [1]}}, {"name": "g", "arguments": {}}])",
        {"", "", {R"(f({"a": [1]}))", "g({})"}}},
       {R"( [TOOL_CALLS]  [{"arguments": {"a": "]}"}, "name": "f", "id": "abcdef123"}]</s>)",
        {"</s>", "", {R"(f({"a": "]}"}))"}}},
       {R"(Well. [TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{"b": 2})",
        {"Well.", "", {R"(f({"a": 1}))", R"(g({"b": 2}))"}}},
       {R"([TOOL_CALLS]f[CALL_ID]abcdef123[ARGS]{"a": {}}[TOOL_CALLS]g-1.x_ [ARGS] {})",
        {"", "", {R"(f({"a": {}}))", "g-1.x_({})"}}},
       {R"([TOOL_CALLS][{"name": "f", "arguments": {}}] and so on)", {"and so on", "", {"f({})"}}},
       {R"([TOOL_CALLS]f[ARGS]{"a": "\u00fc)", {"", "", {R"(f({"a": "\u00fc))"}}},
       {"a [TOOL_CALLS]f[CALL_ID]abc", {"a [TOOL_CALLS]f[CALL_ID]abc", "", {}}},
       {R"(a [TOOL_CALLS][{"nam)", {R"(a [TOOL_CALLS][{"nam)", "", {}}},
       {"[TOOL_CALLS] so they say, {x}", {"[TOOL_CALLS] so they say, {x}", "", {}}},
       {"[TOOL_CALLS][1, {}]", {"[TOOL_CALLS][1, {}]", "", {}}},
       {"a [list] of [TOOL_", {"a [list] of [TOOL_", "", {}}}});
}

TEST(ToolParser, MistralsIdsAreWhatItsTemplatesTake) {
  const auto parser = make_chat_parser(
      {.format = ToolFormat::kMistral, .id_prefix = "call_0123_", .short_ids = true});
  const ChatPiece piece = parser->push("[TOOL_CALLS]f{}[TOOL_CALLS]g{}");
  ASSERT_EQ(piece.calls.size(), 4U);
  for (const size_t i : {0, 2}) {
    EXPECT_EQ(piece.calls[i].id.size(), 9U);
    EXPECT_EQ(piece.calls[i].id.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz"),
              std::string::npos);
  }
  EXPECT_NE(piece.calls[0].id, piece.calls[2].id);
}

// Random sequences of the markers that parsers look for.
TEST(ToolParser, NoTextDependsOnItsPieces) {
  const std::vector<std::string> words = {"<tool_call>",
                                          "</tool_call>",
                                          "{\"name\": \"f\", ",
                                          "\"arguments\": {",
                                          "\"parameters\": ",
                                          "}",
                                          "}",
                                          "]",
                                          "[",
                                          "\"",
                                          "\\",
                                          "[TOOL_CALLS]",
                                          "[ARGS]",
                                          "[CALL_ID]",
                                          "f",
                                          " ",
                                          "\n",
                                          ";",
                                          ",",
                                          "<|python_tag|>",
                                          "<think>",
                                          "</think>",
                                          "<",
                                          "null",
                                          "é",
                                          ":"};
  std::mt19937 random(1);
  for (int i = 0; i < 20'000; ++i) {
    std::string text;
    for (size_t n = random() % 14; n > 0; --n) {
      text += words[random() % words.size()];
    }
    const ChatParserOptions options{.format = static_cast<ToolFormat>(random() % 12),
                                    .function = "f",
                                    .parallel = random() % 4 != 0,
                                    .reasoning = static_cast<ReasoningFormat>(random() % 4)};
    const Parsed at_once = parse(options, text, text.size() + 1);
    for (const size_t step : {1, 2, 5}) {
      ASSERT_EQ(parse(options, text, step), at_once)
          << text << " by " << step << " as " << static_cast<int>(options.format);
    }
  }
}

TEST(ToolParser, ForcedCalls) {
  expect({.format = ToolFormat::kNamed, .function = "f"},
         R"({"a": "x"})",
         {"", "", {R"(f({"a": "x"}))"}});
  const std::string two =
      R"([{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}])";
  expect({.format = ToolFormat::kList}, two, {"", "", {R"(f({"a": 1}))", "g({})"}});
  expect({.format = ToolFormat::kList, .parallel = false}, two, {"", "", {R"(f({"a": 1}))"}});
}

// A grammar that forces calls begins behind the thinking section.
TEST(ToolParser, ForcedCallsBehindReasoning) {
  const std::string list = R"([{"name": "f", "parameters": {"a": "</think>"}}])";
  const std::string arguments = R"({"a": 1})";
  for (const bool begins : {false, true}) {
    const std::string thought = begins ? "so\n</think>\n\n" : "<think>so</think>";
    ChatParserOptions options{.format = ToolFormat::kList,
                              .reasoning = ReasoningFormat::kThink,
                              .begins_reasoning = begins};
    expect(options, thought + list, {"", "so", {R"(f({"a": "</think>"}))"}});
    expect(options, thought, {"", "so", {}});
    expect(options, begins ? "cut o" : "<think>cut o", {"", "cut o", {}});
    options.format = ToolFormat::kNamed;
    options.function = "f";
    expect(options, thought + arguments, {"", "so", {R"(f({"a": 1}))"}});
    expect(options, thought, {"", "so", {}});
  }
  expect({.format = ToolFormat::kList, .reasoning = ReasoningFormat::kThink},
         list,
         {"", "", {R"(f({"a": "</think>"}))"}});
  expect({.format = ToolFormat::kNamed, .function = "f", .reasoning = ReasoningFormat::kThink},
         arguments,
         {"", "", {R"(f({"a": 1}))"}});
}

TEST(ToolParser, Reasoning) {
  ChatParserOptions options{.reasoning = ReasoningFormat::kThink};
  expect(options, "<think>\nhm <b>\n\n</think>\n\nYes.", {"Yes.", "hm <b>", {}});
  expect(options, "No thought.", {"No thought.", "", {}});
  expect(options, "<think>cut off\n", {"", "cut off\n", {}});
  options.include_reasoning = false;
  expect(options, "<think>\nhm</think>Yes.", {"Yes.", "", {}});
  options = {.format = ToolFormat::kLlama3, .reasoning = ReasoningFormat::kThink};
  expect(
      options, "<think>a</think>\n\n{\"name\": \"f\", \"parameters\": {}}", {"", "a", {"f({})"}});
  options = {.format = ToolFormat::kHermes,
             .reasoning = ReasoningFormat::kThink,
             .begins_reasoning = true};
  expect(options,
         "so\n</think>\n\n<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>",
         {"", "so", {"f({})"}});
}

TEST(ToolGrammar, RequiresOneOfTheFunctions) {
  ToolOptions options;
  options.tools = nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"$defs": {"D": {"type": "string"}},
     "type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}}}},
    {"type": "function", "function": {"name": "g"}}])");
  options.choice = ToolOptions::Choice::kRequired;
  EXPECT_EQ(
      tool_grammar(options).text,
      R"({"type":"array","minItems":1,"maxItems":16,"items":{"anyOf":[{"type":"object","properties":)"
      R"({"name":{"enum":["f"]},"parameters":{"$defs":{"D":{"type":"string"}},"type":"object",)"
      R"("properties":{"d":{"$ref":"#/items/anyOf/0/properties/parameters/$defs/D"}}}},)"
      R"("required":["name","parameters"],"additionalProperties":false},{"type":"object","properties":)"
      R"({"name":{"enum":["g"]},"parameters":{"type":"object"}},"required":["name","parameters"],)"
      R"("additionalProperties":false}]}})");
  options.choice = ToolOptions::Choice::kNamed;
  options.name = "g";
  EXPECT_EQ(tool_grammar(options).text, R"({"type":"object"})");
}

// Whether the grammar accepts the whole text.
bool takes(const StructuredOutput& wanted, const std::string& text) {
  const auto bytes = value_or_throw(make_byte_text());
  auto compiler = value_or_throw(GrammarCompiler::make(bytes->tokenizer, std::vector<TokenId>{0}));
  GrammarMatcher matcher(value_or_throw(compiler.compile(wanted.kind, wanted.text)));
  return std::ranges::all_of(text, [&](char c) { return matcher.accept(c).has_value(); }) &&
         matcher.is_stopped();
}

// Tools may define the same name. Each keeps its own definition, even with references to others or to itself.
TEST(ToolGrammar, EachToolHasItsOwnDefinitions) {
  ToolOptions options;
  options.tools = nlohmann::ordered_json::parse(R"([
    {"type": "function", "function": {"name": "f", "parameters": {"$defs": {"D": {"type": "boolean"}},
      "type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}, "required": ["d"]}}},
    {"type": "function", "function": {"name": "g", "parameters": {"$defs": {"D": {"type": "object",
      "properties": {"next": {"anyOf": [{"$ref": "#/$defs/D"}, {"type": "null"}]}}, "required": ["next"]}},
      "type": "object", "properties": {"d": {"$ref": "#/$defs/D"}}, "required": ["d"]}}},
    {"type": "function", "function": {"name": "h", "parameters": {"definitions": {"D": {"const": {"$ref": "#"}}},
      "type": "object", "properties": {"$ref": {"$ref": "#/definitions/D"}, "me": {"$ref": "#"}},
      "required": ["$ref"]}}}])");
  options.choice = ToolOptions::Choice::kRequired;
  const StructuredOutput grammar = tool_grammar(options);
  const auto call = [](const std::string& name, const std::string& arguments) {
    return R"([{"name":")" + name + R"(","parameters":)" + arguments + "}]";
  };
  const std::string nested = R"({"d":{"next":{"next":{"next":null}}}})";
  const std::string own = R"({"$ref":{"$ref":"#"},"me":{"$ref":{"$ref":"#"}}})";
  EXPECT_TRUE(takes(grammar, call("f", R"({"d":true})")));
  EXPECT_FALSE(takes(grammar, call("f", nested)));
  EXPECT_TRUE(takes(grammar, call("g", nested)));
  EXPECT_FALSE(takes(grammar, call("g", R"({"d":true})")));
  EXPECT_TRUE(takes(grammar, call("h", own)));
  options.choice = ToolOptions::Choice::kNamed;
  options.name = "h";
  EXPECT_TRUE(takes(tool_grammar(options), own));
}

}  // namespace
}  // namespace warprow
