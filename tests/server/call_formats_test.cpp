// SPDX-License-Identifier: Apache-2.0
// The formats of calls and reasoning beside Hermes', Llama's and Mistral's: samples in any pieces, cut off, malformed.
#include "server/chat/python_call.h"
#include "server/chat/tool_parser.h"

#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

struct ParsedCalls {
  std::string content;
  std::string reasoning;
  std::vector<std::string> calls;  // "name(arguments)"
  bool failed = false;
};

ParsedCalls parse_calls(const ChatParserOptions& options, std::string_view text, size_t step) {
  const auto parser = make_chat_parser(options);
  ChatPiece all;
  for (size_t at = 0; at < text.size(); at += step) {
    all.append(parser->push(text.substr(at, step)));
  }
  all.append(parser->finish());
  ParsedCalls out{all.content, all.reasoning, {}, parser->failed()};
  for (const ToolCallPiece& piece : all.calls) {
    if (!piece.name.empty()) {
      out.calls.push_back(piece.name + "(");
    }
    out.calls.back() += piece.arguments;
  }
  for (std::string& call : out.calls) {
    call += ")";
  }
  return out;
}

void expect_parsed(const ChatParserOptions& options,
                   const std::string& text,
                   const ParsedCalls& wanted) {
  for (size_t step = 1; step <= text.size() + 1; ++step) {
    const ParsedCalls got = parse_calls(options, text, step);
    ASSERT_EQ(got.content, wanted.content) << text << " by " << step;
    ASSERT_EQ(got.reasoning, wanted.reasoning) << text << " by " << step;
    ASSERT_EQ(got.calls, wanted.calls) << text << " by " << step;
    ASSERT_EQ(got.failed, wanted.failed) << text << " by " << step;
  }
}

// A function f with a parameter of each kind.
ParameterKinds kinds() {
  return ParameterKinds(
      OrderedJson::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {
    "type": "object", "properties": {
      "s": {"type": "string"}, "n": {"type": "integer"}, "b": {"type": "boolean"}, "o": {"type": "object"},
      "l": {"type": "array"}, "ns": {"type": ["string", "null"]}, "e": {"enum": ["1", "2"]},
      "a": {"anyOf": [{"type": "number"}, {"type": "null"}]}, "x": {}}}}},
    {"type": "function", "function": {"name": "g"}}])"));
}

TEST(CallFormats, Qwen3Coder) {
  const ChatParserOptions options{.format = ToolFormat::kQwen3Coder, .parameters = kinds()};
  const auto call = [](const std::string& parameters) {
    return "<tool_call>\n<function=f>\n" + parameters + "</function>\n</tool_call>";
  };
  const auto parameter = [](const std::string& key, const std::string& value) {
    return "<parameter=" + key + ">\n" + value + "\n</parameter>\n";
  };
  expect_parsed(options, "no call < here <tool", {"no call < here <tool", "", {}});
  expect_parsed(options, call(""), {"", "", {"f({})"}});
  expect_parsed(
      options, "I look.\n\n" + call(parameter("s", "12")), {"I look.", "", {R"(f({"s": "12"}))"}});
  expect_parsed(options,
                call(parameter("s", "a\n\"b\" </p> é") + parameter("n", "12")),
                {"", "", {R"(f({"s": "a\n\"b\" </p> é", "n": 12}))"}});
  expect_parsed(options,
                call(parameter("b", "True") + parameter("o", R"({"k": [1, "2"]})") +
                     parameter("l", "['a', None]")),
                {"", "", {R"(f({"b": true, "o": {"k": [1, "2"]}, "l": ["a", null]}))"}});
  expect_parsed(options,
                call(parameter("ns", "null") + parameter("e", "1") + parameter("a", "2.5")),
                {"", "", {R"(f({"ns": null, "e": "1", "a": 2.5}))"}});
  expect_parsed(options,
                call(parameter("n", "many") + parameter("x", "3") + parameter("new", "4")),
                {"", "", {R"(f({"n": "many", "x": "3", "new": "4"}))"}});
  expect_parsed(
      options, call("") + "\n" + call(parameter("n", "1")), {"", "", {"f({})", R"(f({"n": 1}))"}});
  expect_parsed(options, "Hm. <function=g>\n</function>", {"Hm.", "", {"g({})"}});
  // Cut off, and no calls.
  expect_parsed(options,
                "<tool_call>\n<function=f>\n" + parameter("n", "1") + "<parameter=s>\nabc",
                {"", "", {R"(f({"n": 1))"}, true});
  expect_parsed(options, "<tool_call>\n<func", {"<tool_call>\n<func", "", {}, true});
  for (const char* text : {"<tool_call>{\"name\": \"f\"}</tool_call>",
                           "<tool_call>\n<function=f\n></function>",
                           "<tool_call> and so on",
                           "<tool_call><function=a b></function></tool_call>"}) {
    expect_parsed(options, text, {text, "", {}, true});
  }
  expect_parsed(options,
                "<tool_call><function=f>nothing</function></tool_call>",
                {"nothing</function></tool_call>", "", {"f()"}, true});
}

TEST(CallFormats, Glm) {
  const ChatParserOptions options{.format = ToolFormat::kGlm, .parameters = kinds()};
  const auto pair = [](const std::string& key, const std::string& value) {
    return "<arg_key>" + key + "</arg_key>\n<arg_value>" + value + "</arg_value>\n";
  };
  expect_parsed(options, "<tool_call>f\n</tool_call>", {"", "", {"f({})"}});
  expect_parsed(options,
                "So.\n<tool_call>f\n" + pair("s", "1 < 2") + pair("n", "3") +
                    "</tool_call>\n<tool_call>g" + pair("any", "[true]") + "</tool_call> Done.",
                {"So. Done.", "", {R"(f({"s": "1 < 2", "n": 3}))", R"(g({"any": [true]}))"}});
  expect_parsed(options,
                "<tool_call>f\n" + pair("s", "\n x") + "<arg_key>n</arg_key><arg_va",
                {"", "", {R"(f({"s": "\n x"))"}, true});
  for (const char* text : {"<tool_call>{\"name\": \"f\"}</tool_call>",
                           "<tool_call>x <b>y</b>",
                           "<tool_call></tool_call>"}) {
    expect_parsed(options, text, {text, "", {}, true});
  }
}

TEST(CallFormats, DeepSeekV3) {
  const ChatParserOptions options{.format = ToolFormat::kDeepSeekV3};
  const std::string begin = "<｜tool▁calls▁begin｜>";
  const std::string end = "<｜tool▁calls▁end｜>";
  const auto fenced = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>function<｜tool▁sep｜>" + name + "\n```json\n" + arguments +
           "\n```<｜tool▁call▁end｜>";
  };
  const auto plain = [](const std::string& name, const std::string& arguments) {
    return "<｜tool▁call▁begin｜>" + name + "<｜tool▁sep｜>" + arguments + "<｜tool▁call▁end｜>";
  };
  const std::string arguments = R"({"a": "}`<", "b": [1]})";
  expect_parsed(options,
                "Hm." + begin + fenced("f", arguments) + "\n" + fenced("g", "{}") + end,
                {"Hm.", "", {"f(" + arguments + ")", "g({})"}});
  expect_parsed(options,
                begin + plain("f", arguments) + plain("g", "{}") + end,
                {"", "", {"f(" + arguments + ")", "g({})"}});
  expect_parsed(options,
                begin + plain("f", "{}") + end + " and " + begin + plain("g", "{}") + end,
                {"and", "", {"f({})", "g({})"}});
  expect_parsed(options,
                begin + "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{\"a\": 1",
                {"", "", {R"(f({"a": 1))"}, true});
  expect_parsed(options, begin + plain("f", "{}"), {"", "", {"f({})"}});
  for (const std::string& text : {begin + end,
                                  begin + plain("f", "[1]"),
                                  begin + "so",
                                  begin + plain("", "{}"),
                                  begin + "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f"}) {
    expect_parsed(options, text, {text, "", {}, true});
  }
  expect_parsed(options, begin + plain("f", "{'a': 1}") + end, {"", "", {"f({'a': 1})"}, true});
}

TEST(CallFormats, Kimi) {
  const ChatParserOptions options{.format = ToolFormat::kKimi, .id_prefix = "p"};
  const std::string text =
      "Well.<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|"
      ">"
      R"({"a": 1}<|tool_call_end|><|tool_call_begin|>functions.g.h:1<|tool_call_argument_begin|>{})"
      "<|tool_call_end|><|tool_calls_section_end|>";
  expect_parsed(options, text, {"Well.", "", {R"(f({"a": 1}))", "g.h({})"}});
  const auto parser = make_chat_parser(options);
  EXPECT_EQ(parser->push(text).calls.front().id, "functions.f:0")
      << "the template needs its own ids";
  ChatParserOptions one = options;
  one.parallel = false;
  expect_parsed(one, text, {"Well.", "", {R"(f({"a": 1}))"}});
}

TEST(CallFormats, Pythonic) {
  const ChatParserOptions options{.format = ToolFormat::kPythonic};
  expect_parsed(
      options,
      R"( [f(a=1, b='x\'y', c=[True, {"k": None}], d=-2.5), g.h()])",
      {"", "", {R"(f({"a": 1, "b": "x'y", "c": [true, {"k": null}], "d": -2.5}))", "g.h({})"}});
  expect_parsed(options, "<|python_start|>[g()]<|python_end|>", {"", "", {"g({})"}});
  expect_parsed(options, "[g(), f(a=1", {"", "", {"g({})"}, true});
  expect_parsed(options, "[f(a=", {"[f(a=", "", {}, true});
  expect_parsed(options, "A list: [f()]", {"A list: [f()]", "", {}});
  for (const char* text :
       {"[1, 2]", "[f]", "[f(1)]", "[f(a=b)]", "[]", "[f(a=01)]", "[f(a={1: 2})]"}) {
    expect_parsed(options, text, {text, "", {}, true});
  }
}

TEST(PythonCall, LiteralsBecomeJson) {
  const std::vector<std::pair<const char*, const char*>> samples = {
      {"'a\\n\\t\\x41\\u00e9\\U0001F600\\q'", "\"a\\n\\tAé😀\\\\q\""},
      {"(1, 2,)", "[1, 2]"},
      {"{'a': {}, \"b\": [],}", R"({"a": {}, "b": []})"},
      {" None ", "null"},
      {"false", "false"},
      {"1e3", "1e3"}};
  for (const auto& [python, json] : samples) {
    EXPECT_EQ(python_literal(python), json) << python;
  }
  for (const char* none : {"",
                           "a",
                           "'",
                           "'a\nb'",
                           "[1",
                           "[1 2]",
                           "{'a'}",
                           "{'a': }",
                           "'\\ud800'",
                           "1 2",
                           "+1",
                           "--1"}) {
    EXPECT_FALSE(python_literal(none)) << none;
  }
  EXPECT_TRUE(python_literal(std::string(64, '[') + std::string(64, ']')));
  EXPECT_FALSE(python_literal(std::string(66, '[') + std::string(66, ']'))) << "too deep";
}

// Random sequences of the markers of each format.
TEST(CallFormats, NoTextDependsOnItsPieces) {
  const std::vector<std::vector<std::string>> words = {{"<tool_call>",
                                                        "</tool_call>",
                                                        "<function=f>",
                                                        "</function>",
                                                        "<parameter=s>",
                                                        "<parameter=n>",
                                                        "</parameter>",
                                                        "1",
                                                        "\n"},
                                                       {"<tool_call>",
                                                        "</tool_call>",
                                                        "f",
                                                        "<arg_key>",
                                                        "n",
                                                        "</arg_key>",
                                                        "<arg_value>",
                                                        "</arg_value>",
                                                        "\n"},
                                                       {"<｜tool▁calls▁begin｜>",
                                                        "<｜tool▁call▁begin｜>",
                                                        "function",
                                                        "<｜tool▁sep｜>",
                                                        "f\n```json\n",
                                                        "{\"a\": 1}",
                                                        "\n```",
                                                        "<｜tool▁call▁end｜>",
                                                        "<｜tool▁calls▁end｜>"},
                                                       {"<|tool_calls_section_begin|>",
                                                        "<|tool_call_begin|>",
                                                        "functions.f:0",
                                                        "<|tool_call_argument_begin|>",
                                                        "{}",
                                                        "<|tool_call_end|>",
                                                        "<|tool_calls_section_end|>"},
                                                       {"[",
                                                        "f(",
                                                        "a=",
                                                        "1",
                                                        "'",
                                                        "x'",
                                                        ", ",
                                                        ")",
                                                        "]",
                                                        "g()",
                                                        "<|python_start|>",
                                                        "<|python_end|>",
                                                        "\\u00e9"},
                                                       {"<|start|>",
                                                        "assistant",
                                                        "<|channel|>",
                                                        "analysis",
                                                        "final",
                                                        "commentary",
                                                        " to=functions.f",
                                                        "<|message|>",
                                                        "{}",
                                                        "<|end|>",
                                                        "<|call|>",
                                                        "<|return|>"},
                                                       {"<think>",
                                                        "</think>",
                                                        "<response>",
                                                        "</response>",
                                                        "Here is my ",
                                                        "thought process:",
                                                        "response:"}};
  constexpr ToolFormat kFormats[] = {ToolFormat::kQwen3Coder,
                                     ToolFormat::kGlm,
                                     ToolFormat::kDeepSeekV3,
                                     ToolFormat::kKimi,
                                     ToolFormat::kPythonic,
                                     ToolFormat::kHarmony,
                                     ToolFormat::kHermes};
  std::mt19937 random(1);
  int num_calls = 0;
  for (int i = 0; i < 10'000; ++i) {
    const size_t which = random() % words.size();
    const auto& own = words[which];
    std::string text;
    // Mostly one word after the other, as a call has them.
    for (size_t n = random() % 16, at = random() % own.size(); n > 0; --n) {
      at = random() % 3 == 0 ? random() % own.size() : (at + 1) % own.size();
      text += random() % 12 == 0 ? " <" : own[at];
    }
    ChatParserOptions options{.format = kFormats[which],
                              .parallel = random() % 4 != 0,
                              .reasoning = static_cast<ReasoningFormat>(random() % 3),
                              .parameters = kinds()};
    if (options.format == ToolFormat::kHarmony) {
      options.reasoning = ReasoningFormat::kHarmony;
    }
    const ParsedCalls at_once = parse_calls(options, text, text.size() + 1);
    num_calls += static_cast<int>(at_once.calls.size());
    ASSERT_LE(at_once.content.size() + at_once.reasoning.size(), text.size()) << text;
    for (const size_t step : {1, 2, 5, 17}) {
      const ParsedCalls got = parse_calls(options, text, step);
      ASSERT_EQ(got.content, at_once.content) << text << " by " << step;
      ASSERT_EQ(got.reasoning, at_once.reasoning) << text << " by " << step;
      ASSERT_EQ(got.calls, at_once.calls) << text << " by " << step;
      ASSERT_EQ(got.failed, at_once.failed) << text << " by " << step;
    }
  }
  EXPECT_GT(num_calls, 300);
}

TEST(CallFormats, ReasoningComesFirst) {
  for (const bool begins : {false, true}) {
    const ChatParserOptions options{.format = ToolFormat::kGlm,
                                    .reasoning = ReasoningFormat::kThink,
                                    .begins_reasoning = begins};
    const std::string thought =
        begins ? "a <tool_call> b</think>\n" : "<think>a <tool_call> b</think>\n";
    expect_parsed(
        options, thought + "<tool_call>g</tool_call>", {"", "a <tool_call> b", {"g({})"}});
    const auto parser = make_chat_parser(options);
    const ChatPiece piece = parse_whole(*parser, thought + "x <tool_call>{}</tool_call>", false);
    EXPECT_EQ(piece.content, "x <tool_call>{}</tool_call>");
    EXPECT_EQ(piece.reasoning, "a <tool_call> b");
  }
}

TEST(CallFormats, GranitesReasoning) {
  ChatParserOptions options{.format = ToolFormat::kHermes, .reasoning = ReasoningFormat::kGranite};
  expect_parsed(options,
                "Here is my thought process: it is\nso. Here is my response:\n\nYes. ",
                {"Yes. ", "it is\nso.", {}});
  expect_parsed(options,
                "<think>\na < b\n</think>\n<response>\nYes </b>.\n</response>",
                {"Yes </b>.", "a < b", {}});
  expect_parsed(
      options,
      "Here's my thought process: x Here's my response: <tool_call>{\"name\": \"f\"}</tool_call>",
      {"", "x", {"f({})"}});
  expect_parsed(options, "Here is my answer.", {"Here is my answer.", "", {}});
  expect_parsed(options, "<think>cut off </thi", {"", "cut off </thi", {}});
  options.include_reasoning = false;
  expect_parsed(options, "<think>a</think>b", {"b", "", {}});
}

TEST(CallFormats, Harmony) {
  ChatParserOptions options{.format = ToolFormat::kHarmony, .reasoning = ReasoningFormat::kHarmony};
  const std::string thought = "<|channel|>analysis<|message|>Hm < so.<|end|>";
  const std::string next = "<|start|>assistant";
  const std::string final = "<|channel|>final<|message|>";
  const std::string header = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>";
  expect_parsed(options, final + "Yes <|b.", {"Yes <|b.", "", {}});
  expect_parsed(options, thought + next + final + "Yes.<|return|>", {"Yes.", "Hm < so.", {}});
  expect_parsed(
      options, thought + next + header + R"({"a": 1})", {"", "Hm < so.", {R"(f({"a": 1}))"}});
  // The recipient before the channel, as the template writes it.
  expect_parsed(options,
                " to=functions.f<|channel|>commentary json<|message|>{}<|call|>",
                {"", "", {"f({})"}});
  expect_parsed(options,
                thought + next + " to=functions.f<|channel|>commentary json<|message|>{}<|call|>" +
                    next + header + R"({"b": []}<|call|>)",
                {"", "Hm < so.", {"f({})", R"(f({"b": []}))"}});
  expect_parsed(options,
                "<|channel|>commentary<|message|>I look it up.<|end|>" + next + header + "{}",
                {"I look it up.", "", {"f({})"}});
  expect_parsed(options, thought + next + thought, {"", "Hm < so.\nHm < so.", {}});
  // A call of a built-in tool in the reasoning is reasoning.
  expect_parsed(
      options, "<|channel|>analysis to=browser.search code<|message|>{}<|end|>", {"", "{}", {}});
  // An answer that continues the prompt's message has no header.
  expect_parsed(options, "and so on.", {"and so on.", "", {}});
  // A call of no function is content.
  expect_parsed(options, "<|channel|>commentary to=functions.<|message|>{}", {"{}", "", {}});
  // Cut off in a header, in reasoning, in a call.
  expect_parsed(options, thought + next + "<|channel|>fin", {"", "Hm < so.", {}});
  expect_parsed(options, "<|channel|>analysis<|message|>Hm <|e", {"", "Hm <|e", {}});
  expect_parsed(options, header + R"({"a": )", {"", "", {R"(f({"a": ))"}, true});
  const auto parser = make_chat_parser(options);
  const ChatPiece piece = parse_whole(*parser, thought + next + header + "{'a': 1}", false);
  EXPECT_EQ(piece.content, "{'a': 1}") << "no JSON is content";
  EXPECT_TRUE(piece.calls.empty());
  options.format = ToolFormat::kNone;
  expect_parsed(options, thought + next + header + "{}", {"{}", "Hm < so.", {}});
  options.include_reasoning = false;
  expect_parsed(options, thought + next + final + "Yes.", {"Yes.", "", {}});
}

}  // namespace
}  // namespace warprow
