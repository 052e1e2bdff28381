// SPDX-License-Identifier: Apache-2.0
#include "server/endpoints/generation_body.h"

#include "server/endpoints/chat_body.h"
#include "server/endpoints/completions_body.h"

#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace warprow {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

enum class Kind { kCompletions, kChat };

Result<GenerationBody> parse_body(Kind kind, const std::string& text) {
  return kind == Kind::kChat ? parse_chat_body(text) : parse_completions_body(text);
}
GenerationBody read(Kind kind, const std::string& text) {
  const Result<GenerationBody> body = parse_body(kind, text);
  EXPECT_TRUE(body) << text << ": " << (body ? "" : body.error().message);
  return body ? *body : GenerationBody{};
}
std::string refusal(Kind kind, const std::string& text) {
  const Result<GenerationBody> body = parse_body(kind, text);
  EXPECT_FALSE(body) << text;
  return body ? "" : body.error().message;
}
std::string refused_completion(const std::string& fields) {
  return refusal(Kind::kCompletions, R"({"prompt": "x", )" + fields + "}");
}
std::string refused_chat(const std::string& fields) {
  return refusal(Kind::kChat,
                 R"({"messages": [{"role": "user", "content": "x"}], )" + fields + "}");
}

TEST(GenerationBody, CompletionTakesEveryFieldOfSampling) {
  const GenerationBody body = read(Kind::kCompletions, R"({
    "model": "m", "prompt": "Hi", "max_tokens": 5.0, "min_tokens": 1, "temperature": 0.5, "top_p": 0.9,
    "top_k": 4, "min_p": 0.1, "seed": 7, "n": 2, "logprobs": 0, "stop": "END", "stop_token_ids": [3],
    "repetition_penalty": 1.1, "frequency_penalty": 0.2, "presence_penalty": -0.2, "ignore_eos": true,
    "include_stop_str_in_output": true, "skip_special_tokens": false,
    "spaces_between_special_tokens": false, "priority": -3,
    "cache_salt": "s", "request_id": "r", "add_special_tokens": false, "allowed_token_ids": [4, 5], "bad_words": ["no"],
    "logprob_token_ids": [6],
    "logit_bias": {"7": -1.5}, "stream": true, "stream_options": {"include_usage": true}})");
  const SamplingOptions& options = body.sampling;
  EXPECT_EQ(body.model, "m");
  EXPECT_EQ(std::get<std::string>(body.prompts.at(0)), "Hi");
  EXPECT_EQ(options.max_tokens, 5);
  EXPECT_EQ(options.min_tokens, 1);
  EXPECT_EQ(options.temperature, 0.5);
  EXPECT_EQ(options.top_p, 0.9);
  EXPECT_EQ(options.top_k, 4);
  EXPECT_EQ(options.min_p, 0.1);
  EXPECT_EQ(options.seed, 7);
  EXPECT_EQ(options.n, 2);
  EXPECT_EQ(options.logprobs, 0);
  EXPECT_THAT(options.stop, ElementsAre("END"));
  EXPECT_THAT(options.stop_token_ids, ElementsAre(3));
  EXPECT_EQ(options.repetition_penalty, 1.1);
  EXPECT_EQ(options.frequency_penalty, 0.2);
  EXPECT_EQ(options.presence_penalty, -0.2);
  EXPECT_TRUE(options.ignore_eos);
  EXPECT_TRUE(options.include_stop_str_in_output);
  EXPECT_FALSE(options.skip_special_tokens);
  EXPECT_FALSE(options.spaces_between_special_tokens);
  EXPECT_THAT(options.allowed_token_ids.value_or(std::vector<int64_t>{}), ElementsAre(4, 5));
  EXPECT_THAT(options.logprob_token_ids.value_or(std::vector<int64_t>{}), ElementsAre(6));
  EXPECT_THAT(options.bad_words, ElementsAre("no"));
  EXPECT_THAT(options.logit_bias, ElementsAre(std::pair<const int64_t, double>(7, -1.5)));
  EXPECT_EQ(body.priority, -3);
  EXPECT_EQ(body.cache_salt, "s");
  EXPECT_TRUE(body.stream);
  EXPECT_TRUE(body.include_usage);
  EXPECT_EQ(body.request_id, "r");
  EXPECT_EQ(body.add_special_tokens, false);
  EXPECT_TRUE(body.ignored.empty());
}

TEST(GenerationBody, DefaultsAreVllms) {
  EXPECT_EQ(read(Kind::kCompletions, R"({"prompt": "x"})").sampling.max_tokens, 16);
  EXPECT_EQ(read(Kind::kCompletions, R"({"prompt": "x", "max_tokens": null})").sampling.max_tokens,
            16);
  const GenerationBody chat =
      read(Kind::kChat, R"({"messages": [{"role": "user", "content": "x"}], "stop": null})");
  EXPECT_FALSE(chat.sampling.max_tokens);
  EXPECT_FALSE(chat.sampling.temperature);
  EXPECT_FALSE(chat.sampling.logprobs);
  EXPECT_FALSE(chat.stream);
}

TEST(GenerationBody, PromptsOfAllForms) {
  const auto prompts = [](const std::string& value) {
    return read(Kind::kCompletions, R"({"prompt": )" + value + "}").prompts;
  };
  const TextOrIds ids = std::vector<TokenId>{1, 2};
  EXPECT_THAT(prompts("[1, 2]"), ElementsAre(ids));
  EXPECT_THAT(prompts("[[1, 2]]"), ElementsAre(ids));
  EXPECT_THAT(prompts(R"(["a"])"), ElementsAre(TextOrIds("a")));
  EXPECT_THAT(prompts(R"(["a", ""])"), ElementsAre(TextOrIds("a"), TextOrIds("")));
  EXPECT_THAT(prompts("[[1, 2], [1, 2]]"), ElementsAre(ids, ids));
  for (const char* bad : {"7",
                          "[1, \"a\"]",
                          "[\"a\", 1]",
                          "[\"a\", [1]]",
                          "[[1], \"a\"]",
                          "[-2]",
                          "[99999999999]",
                          "{}",
                          "[1.5]"}) {
    EXPECT_THAT(refusal(Kind::kCompletions, std::string(R"({"prompt": )") + bad + "}"),
                HasSubstr("prompt: must be text, a list of token ids, or a list of either kind"));
  }
  std::string many = "[[1]";
  for (size_t i = 0; i < kMaxPrompts; ++i) {
    many += ",[1]";
  }
  EXPECT_THAT(refusal(Kind::kCompletions, R"({"prompt": )" + many + "]}"),
              HasSubstr("prompt: 1025 prompts in one request, must be 1024 or less"));
  EXPECT_THAT(refusal(Kind::kCompletions, "{}"), HasSubstr("prompt: missing"));
  EXPECT_THAT(refusal(Kind::kChat, R"({"prompt": "x"})"), HasSubstr("messages: missing"));
}

TEST(GenerationBody, Messages) {
  const GenerationBody body = read(Kind::kChat, R"({"messages": [
    {"role": "system", "content": "be kind", "name": "n", "mood": "good"},
    {"role": "assistant", "content": null, "tool_calls": [
      {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]})");
  const OrderedJson& messages = body.chat.request.messages;
  ASSERT_EQ(messages.size(), 3U);
  EXPECT_EQ(messages[0], (OrderedJson{{"role", "system"}, {"content", "be kind"}, {"name", "n"}}));
  EXPECT_EQ(messages[1]["content"], "");
  EXPECT_EQ(messages[1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(messages[2]["content"].size(), 2U);
  EXPECT_THAT(body.ignored, ElementsAre("messages.mood"));
  const auto refused = [](const char* list) {
    return refusal(Kind::kChat, std::string(R"({"messages": )") + list + "}");
  };
  EXPECT_THAT(refused("[]"), HasSubstr("messages: must be a list of one message or more, not []"));
  EXPECT_THAT(refused("[3]"), HasSubstr("messages[0]: must be an object"));
  EXPECT_THAT(refused(R"([{"content": "x"}])"),
              HasSubstr("messages[0].role: must be text, not null"));
  EXPECT_THAT(refused(R"([{"role": "user"}])"), HasSubstr("messages[0].content: must be text"));
  EXPECT_THAT(refused(R"([{"role": "user", "content": [{"type": "image_url"}]}])"),
              HasSubstr("messages[0].content[0]: must be a part of type text"));
}

// A chat in which the assistant has called a function with each of these arguments.
std::string chat_with_calls(const std::vector<std::string>& arguments) {
  OrderedJson calls = OrderedJson::array();
  for (const std::string& text : arguments) {
    calls.push_back({{"function", {{"name", "f"}, {"arguments", text}}}});
  }
  OrderedJson chat;
  chat["messages"] = {{{"role", "assistant"}, {"content", ""}, {"tool_calls", calls}}};
  return chat.dump();
}

TEST(GenerationBody, ArgumentsOfCallsHaveTheBodysLimits) {
  const auto nested = [](size_t levels) {
    std::string text;
    for (size_t i = 1; i < levels; ++i) {
      text += R"({"a":)";
    }
    return text + "{}" + std::string(levels - 1, '}');
  };
  read(Kind::kChat, chat_with_calls({nested(64), "no JSON"}));
  EXPECT_EQ(refusal(Kind::kChat, chat_with_calls({"{}", nested(65)})),
            "messages[0].tool_calls[1].function.arguments: nests deeper than 64 levels");
  std::string members;
  for (int i = 0; i < 6'000; ++i) {
    members += (i == 0 ? "{\"k" : ",\"k") + std::to_string(i) + "\":0";
  }
  members += "}";
  read(Kind::kChat, chat_with_calls({members, members}));
  EXPECT_EQ(refusal(Kind::kChat, chat_with_calls({members, members, members})),
            "messages[0].tool_calls[2].function.arguments: has objects with too many members");
}

TEST(GenerationBody, ChatLogprobsAndLengths) {
  const auto options = [](const char* fields) {
    return read(Kind::kChat,
                std::string(R"({"messages": [{"role": "user", "content": "x"}], )") + fields + "}")
        .sampling;
  };
  EXPECT_EQ(options(R"("logprobs": true)").logprobs, 0);
  EXPECT_EQ(options(R"("logprobs": true, "top_logprobs": 3)").logprobs, 3);
  EXPECT_FALSE(options(R"("logprobs": false)").logprobs);
  EXPECT_EQ(options(R"("max_tokens": 4, "max_completion_tokens": 9)").max_tokens, 9);
  EXPECT_THAT(refused_chat(R"("top_logprobs": 3)"), HasSubstr("top_logprobs: 3 needs logprobs"));
  EXPECT_THAT(refused_chat(R"("logprobs": 3)"),
              HasSubstr("logprobs: must be true or false, not 3"));
}

TEST(GenerationBody, WrongTypesAreNamed) {
  EXPECT_EQ(refused_completion(R"("temperature": "hot")"),
            "temperature: must be a number, not \"hot\"");
  EXPECT_EQ(refused_completion(R"("top_k": 1.5)"),
            "top_k: must be a whole number of 64 bits, not 1.5");
  EXPECT_THAT(refused_completion(R"("seed": 18446744073709551615)"),
              HasSubstr("seed: must be a whole number"));
  EXPECT_THAT(refused_completion(R"("stop": [1])"),
              HasSubstr("stop: must be text or a list of texts"));
  EXPECT_THAT(refused_completion(R"("stream": "yes")"), HasSubstr("stream: must be true or false"));
  EXPECT_THAT(refused_completion(R"("priority": 9999999999)"),
              HasSubstr("priority: must be a whole number of 32"));
  for (const char* bias : {"[]", R"({"x": 1})", R"({"1": "2"})", R"({"1.5": 2})"}) {
    EXPECT_THAT(refused_completion(std::string(R"("logit_bias": )") + bias),
                HasSubstr("logit_bias: must be an object of token ids and numbers"));
  }
  EXPECT_THAT(refused_completion(R"("model": 3)"), HasSubstr("model: must be text"));
  EXPECT_THAT(refused_completion(R"("stream_options": {"include_usage": true})"),
              HasSubstr("stream_options: allowed only with stream"));
}

TEST(GenerationBody, RequestIdsArePlain) {
  const std::string longest(128, 'x');
  EXPECT_EQ(
      read(Kind::kChat,
           R"({"messages": [{"role": "user", "content": "x"}], "request_id": ")" + longest + "\"}")
          .request_id,
      longest);
  for (const std::string& id : {std::string(),
                                longest + "x",
                                std::string("a b"),
                                std::string("\\u001b[2J"),
                                std::string("é")}) {
    EXPECT_THAT(refused_completion(R"("request_id": ")" + id + "\""),
                HasSubstr("request_id: must be 1 to 128 visible ASCII characters, not "))
        << id;
  }
}

TEST(GenerationBody, WhatWouldChangeTheAnswerIsRefusedByName) {
  for (const char* field : {R"("suffix": "x")",
                            R"("best_of": 2)",
                            R"("guided_json": {})",
                            R"("chat_template": "x")",
                            R"("thinking_token_budget": 5)"}) {
    const Result<GenerationBody> body =
        parse_completions_body(std::string(R"({"prompt": "x", )") + field + "}");
    ASSERT_FALSE(body) << field;
    EXPECT_EQ(body.error().code, ErrorCode::kUnsupported);
    EXPECT_THAT(body.error().message, HasSubstr(": not supported yet"));
  }
  read(Kind::kCompletions,
       R"({"prompt": "x", "echo": false, "suffix": null, "best_of": 1, "tools": []})");
}

TEST(GenerationBody, EchoOfThePromptAlone) {
  const GenerationBody body =
      read(Kind::kCompletions, R"({"prompt": "x", "echo": true, "max_tokens": 0})");
  EXPECT_TRUE(body.echo);
  EXPECT_TRUE(body.only_prompt);
  EXPECT_EQ(body.sampling.max_tokens, 1);
  EXPECT_EQ(read(Kind::kCompletions, R"({"prompt": "x", "max_tokens": 0})").sampling.max_tokens,
            0);  // the engine refuses it later
}

TEST(GenerationBody, Tools) {
  using Choice = ToolOptions::Choice;
  const std::string tools =
      R"("tools": [{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])";
  const auto options = [&](const std::string& more) {
    return read(Kind::kChat,
                R"({"messages": [{"role": "user", "content": "x"}], )" + tools + more + "}")
        .chat.tools;
  };
  EXPECT_EQ(options("").choice, Choice::kAuto);
  EXPECT_EQ(options("").tools[0]["function"]["parameters"].dump(),
            R"({"b":1,"a":2})");  // sorted keys
  EXPECT_EQ(options(R"(, "tool_choice": "none")").choice, Choice::kNone);
  EXPECT_EQ(options(R"(, "tool_choice": "required")").choice, Choice::kRequired);
  const ToolOptions named =
      options(R"(, "tool_choice": {"type": "function", "function": {"name": "f"}})");
  EXPECT_EQ(named.choice, Choice::kNamed);
  EXPECT_EQ(named.name, "f");
  EXPECT_FALSE(options(R"(, "parallel_tool_calls": false)").parallel);
  EXPECT_THAT(
      refused_chat(tools + R"(, "tool_choice": {"type": "function", "function": {"name": "g"}})"),
      HasSubstr("tool_choice: no tool is named 'g'"));
  EXPECT_THAT(refused_chat(R"("tool_choice": "required")"), HasSubstr("tool_choice: needs tools"));
  EXPECT_THAT(refused_chat(R"("tool_choice": "never")"), HasSubstr("tool_choice: must be none"));
  EXPECT_THAT(refused_chat(R"("tools": [{}])"), HasSubstr("tools[0]: must be an object"));
  EXPECT_THAT(refused_chat(R"("tools": [{"type": "function", "function": {}}])"),
              HasSubstr("tools[0].function.name: must be text"));
  EXPECT_TRUE(
      read(Kind::kChat,
           R"({"messages": [{"role": "user", "content": "x"}], "tools": [], "tool_choice": null})")
          .chat.tools.tools.is_null());
}

TEST(GenerationBody, TemplatesVariables) {
  const ChatOptions chat = read(Kind::kChat, R"({"messages": [{"role": "user", "content": "x"}],
    "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "low",
    "add_generation_prompt": false, "continue_final_message": true, "chat_template": "{{ x }}",
    "thinking_token_budget": 5})")
                               .chat;
  EXPECT_EQ(chat.request.variables.dump(), R"({"enable_thinking":false,"reasoning_effort":"low"})");
  EXPECT_EQ(chat.request.chat_template, "{{ x }}");
  EXPECT_EQ(chat.thinking_token_budget, 5);
  EXPECT_THAT(refused_chat(R"("chat_template": 3)"), HasSubstr("chat_template: must be text"));
  EXPECT_FALSE(chat.request.add_generation_prompt);
  EXPECT_TRUE(chat.request.continue_final_message);
  EXPECT_THAT(refused_chat(R"("continue_final_message": true)"),
              HasSubstr("needs add_generation_prompt to be false"));
}

TEST(GenerationBody, UnknownFieldsAreReported) {
  EXPECT_THAT(read(Kind::kCompletions,
                   R"({"prompt": "x", "user": "me", "temprature": 1, "top_logprobs": 2})")
                  .ignored,
              ElementsAre("user", "temprature", "top_logprobs"));
}

TEST(GenerationBody, NullInStreamOptionsCountsAsAbsent) {
  const GenerationBody body = read(Kind::kCompletions, R"({"prompt": "x", "stream": true,
    "stream_options": {"include_usage": null, "continuous_usage_stats": null}})");
  EXPECT_FALSE(body.include_usage);
  EXPECT_TRUE(body.ignored.empty());
}

TEST(GenerationBody, StreamOptionsAskForUsage) {
  const GenerationBody body = read(Kind::kCompletions, R"({"prompt": "x", "stream": true,
    "stream_options": {"include_usage": true, "continuous_usage_stats": true}})");
  EXPECT_TRUE(body.include_usage);
  EXPECT_TRUE(body.continuous_usage);
  EXPECT_TRUE(body.ignored.empty());
}

TEST(GenerationBody, WhatChangesNothingIsNotReported) {
  EXPECT_THAT(
      read(Kind::kCompletions,
           R"({"prompt": "x", "length_penalty": 1, "store": true, "thinking_token_budget": -1,
                       "spaces_between_special_tokens": true, "vllm_xargs": {}, "unknown": null})")
          .ignored,
      ElementsAre("store"));
}

TEST(GenerationBody, TruncationAndTokenIds) {
  const GenerationBody plain = read(Kind::kCompletions, R"({"prompt": "x"})");
  EXPECT_FALSE(plain.truncate_prompt_tokens);
  EXPECT_FALSE(plain.truncates_right);
  EXPECT_FALSE(plain.return_token_ids);
  EXPECT_FALSE(plain.return_tokens_as_token_ids);
  const GenerationBody body =
      read(Kind::kCompletions,
           R"({"prompt": "x", "truncate_prompt_tokens": -1, "truncation_side": "right",
          "return_token_ids": true, "return_tokens_as_token_ids": true})");
  EXPECT_EQ(body.truncate_prompt_tokens, -1);
  EXPECT_TRUE(body.truncates_right);
  EXPECT_TRUE(body.return_token_ids);
  EXPECT_TRUE(body.return_tokens_as_token_ids);
  EXPECT_EQ(refused_chat(R"("truncate_prompt_tokens": -2)"),
            "truncate_prompt_tokens: must be a whole number of -1 or more, not -2");
  EXPECT_EQ(refused_chat(R"("truncation_side": "middle")"),
            R"(truncation_side: must be left or right, not "middle")");
}

TEST(GenerationBody, WhatIsNoObject) {
  EXPECT_EQ(refusal(Kind::kChat, "{"), "the body is not JSON");
  EXPECT_EQ(refusal(Kind::kChat, ""), "the body is not JSON");
  EXPECT_EQ(refusal(Kind::kChat, "{\"messages\": \"\xff\"}"), "the body is not JSON");
  EXPECT_EQ(refusal(Kind::kChat, "[1]"), "the body must be a JSON object");
  EXPECT_THAT(refusal(Kind::kChat, R"({"a": )" + std::string(1'000'000, '[')),
              HasSubstr("deeper than 64"));
  std::string members = "{";
  for (int i = 0; i < 20'000; ++i) {
    members += "\"k" + std::to_string(i) + "\":0,";
  }
  EXPECT_EQ(refusal(Kind::kChat, members + "\"z\":0}"),
            "the body has objects with too many members");
  // Brackets in texts do not count.
  read(Kind::kCompletions,
       R"({"prompt": "\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[["})");
}

}  // namespace
}  // namespace warprow
