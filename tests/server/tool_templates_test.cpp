// SPDX-License-Identifier: Apache-2.0
// Calls in the text of models' own chat templates, the format in which the models were trained.
#include "server/chat/tool_parser.h"
#include "tests/text/text_test_support.h"
#include "text/chat_template.h"

#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

ChatTemplate read_template(const std::string& path) {
  return value_or_throw(ChatTemplate::parse(
      {test::read_file(path), "", {{"bos_token", "<s>"}, {"eos_token", "</s>"}}}));
}

OrderedJson call(const char* id, const char* name, const char* arguments) {
  return {{"id", id},
          {"type", "function"},
          {"function", {{"name", name}, {"arguments", OrderedJson::parse(arguments)}}}};
}

OrderedJson tool(const char* name) {
  return {{"type", "function"},
          {"function",
           {{"name", name},
            {"description", "d"},
            {"parameters",
             {{"type", "object"},
              {"properties",
               {{"city", {{"type", "string"}}},
                {"deep", {{"type", "object"}}},
                {"yes", {{"type", "boolean"}}},
                {"a", {{"type", "integer"}}},
                {"b", {{"type", "object"}}}}}}}}}};
}

// The template's text for an assistant's turn with these calls, or "" if the template refuses it.
std::string assistant_turn(const ChatTemplate& chat_template, const OrderedJson& calls) {
  ChatRequest request;
  request.tools = OrderedJson::array({tool("get_weather"), tool("add")});
  request.messages.push_back({{"role", "user"}, {"content", "Weather?"}});
  const auto prompt = chat_template.render(request);
  request.messages.push_back({{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}});
  request.add_generation_prompt = false;
  const auto whole = chat_template.render(request);
  if (!prompt || !whole) {
    return "";
  }
  size_t same =
      0;  // a template's generation prompt may end with more than a finished turn begins with
  while (same < prompt->size() && same < whole->size() && (*prompt)[same] == (*whole)[same]) {
    ++same;
  }
  const size_t tag = whole->rfind('<', same - 1);
  if (tag != std::string::npos && whole->substr(tag, same - tag).find('>') == std::string::npos) {
    same = tag;  // "<think>" and "<tool_call>" share two letters
  }
  std::string turn = whole->substr(same);
  for (const char* end : {"<|im_end|>",
                          "<|eot_id|>",
                          "<|eom_id|>",
                          "</s>",
                          "<|end_of_text|>",
                          "<sep>",
                          "<｜end▁of▁sentence｜>"}) {
    turn = turn.substr(0, turn.find(end));
  }
  return turn;
}

// Parses the turn, split into pieces of any length.
void expect_calls(const std::string& turn, ToolFormat format, const OrderedJson& calls) {
  for (size_t step = 1; step <= turn.size(); ++step) {
    const auto parser = make_chat_parser(
        {.format = format,
         .reasoning =
             format == ToolFormat::kHarmony ? ReasoningFormat::kHarmony : ReasoningFormat::kThink,
         .begins_reasoning =
             turn.find("</think>") < turn.find("<think>"),  // the prompt has opened it
         .parameters = ParameterKinds(OrderedJson::array({tool("get_weather"), tool("add")}))});
    ChatPiece all;
    for (size_t at = 0; at < turn.size(); at += step) {
      all.append(parser->push(std::string_view(turn).substr(at, step)));
    }
    all.append(parser->finish());
    ASSERT_FALSE(parser->failed()) << turn;
    ASSERT_EQ(all.content, "") << turn;
    std::vector<std::pair<std::string, std::string>> got;
    for (const ToolCallPiece& piece : all.calls) {
      if (!piece.name.empty()) {
        got.emplace_back(piece.name, "");
      }
      got.back().second += piece.arguments;
    }
    ASSERT_EQ(got.size(), calls.size()) << turn;
    for (size_t i = 0; i < got.size(); ++i) {
      const OrderedJson& function = calls[i]["function"];
      ASSERT_EQ(got[i].first, function["name"].get<std::string>()) << turn;
      ASSERT_EQ(OrderedJson::parse(got[i].second, nullptr, false), function["arguments"]) << turn;
    }
  }
}

TEST(ToolTemplates, CallsAreReadAsTheTemplatesWriteThem) {
  const std::string dir = test::vocab_dir() + "/templates/";
  if (!std::filesystem::exists(dir)) {
    GTEST_SKIP() << dir << " is absent: tools/fetch_vocab_vectors.sh brings it";
  }
  const OrderedJson first = call(
      "abcdef123",
      "get_weather",
      R"({"city": "Zürich } \" \\ {\n[</x>", "deep": {"a": [1, [2.5, {"b": null}], "]"]}, "yes": true})");
  const OrderedJson second = call("abcdef456", "add", R"({"a": 1, "b": {}})");
  const std::map<std::string, ToolFormat> expected = {
      {"Bielik-11B-v3.0-Instruct", ToolFormat::kHermes},
      {"MiMo-VL", ToolFormat::kHermes},
      {"NousResearch-Hermes-2-Pro-Llama-3-8B-tool_use", ToolFormat::kHermes},
      {"NousResearch-Hermes-3-Llama-3.1-8B-tool_use", ToolFormat::kHermes},
      {"Qwen-QwQ-32B", ToolFormat::kHermes},
      {"Qwen-Qwen2.5-7B-Instruct", ToolFormat::kHermes},
      {"Qwen-Qwen3-0.6B", ToolFormat::kHermes},
      {"Reka-Edge", ToolFormat::kHermes},
      {"ibm-granite-granite-4.0", ToolFormat::kHermes},
      {"ibm-granite-granite-4.1", ToolFormat::kHermes},
      {"meta-llama-Llama-3.1-8B-Instruct", ToolFormat::kLlama3},
      {"meta-llama-Llama-3.2-3B-Instruct", ToolFormat::kLlama3},
      {"meta-llama-Llama-3.3-70B-Instruct", ToolFormat::kLlama3},
      {"Mistral-Small-3.2-24B-Instruct-2506", ToolFormat::kMistral},
      {"mistralai-Ministral-3-14B-Reasoning-2512", ToolFormat::kMistral},
      {"mistralai-Mistral-Nemo-Instruct-2407", ToolFormat::kMistral},
      {"unsloth-mistral-Devstral-Small-2507", ToolFormat::kMistral},
      {"GLM-4.6", ToolFormat::kGlm},
      {"Qwen3-Coder", ToolFormat::kQwen3Coder},
      {"Qwen3.5-4B", ToolFormat::kQwen3Coder},
      {"deepseek-ai-DeepSeek-V3.1", ToolFormat::kDeepSeekV3},
      {"moonshotai-Kimi-K2", ToolFormat::kKimi},
      {"openai-gpt-oss-120b", ToolFormat::kHarmony},
  };
  for (const auto& [name, format] : expected) {
    const ChatTemplate chat_template = read_template(dir + name + ".jinja");
    EXPECT_EQ(tool_format_of(chat_template), format) << name;
    OrderedJson calls = OrderedJson::array({first, second});
    if (format == ToolFormat::kHarmony) {  // one call in a message
      calls.erase(1);
    }
    std::string turn = assistant_turn(chat_template, calls);
    if (turn.empty()) {  // Llama 3's templates refuse more than one call
      calls.erase(1);
      turn = assistant_turn(chat_template, calls);
    }
    ASSERT_NE(turn, "") << name;
    SCOPED_TRACE(name);
    expect_calls(turn, format, calls);
  }
}

}  // namespace
}  // namespace warprow
