// SPDX-License-Identifier: Apache-2.0
// /v1/messages: request bodies, answer objects and events.
#include "server/chat/tool_parser.h"
#include "server/endpoints/chat_body.h"
#include "server/endpoints/messages_body.h"
#include "server/endpoints/messages_error.h"
#include "server/endpoints/writers.h"

#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

// `fields` follow max_tokens.
json chat_of_message(const std::string& fields) {
  const Result<OrderedJson> chat =
      parse_messages_body(R"({"max_tokens": 9, )" + fields + "}", false);
  EXPECT_TRUE(chat) << (chat ? "" : chat.error().message);
  return chat ? json::parse(chat->dump()) : json();
}
json messages_of(const std::string& list) {
  return chat_of_message("\"messages\": " + list)["messages"];
}
std::string messages_refusal(const std::string& body) {
  const Result<OrderedJson> chat = parse_messages_body(body, false);
  EXPECT_FALSE(chat) << body;
  return chat ? "" : chat.error().message;
}
std::string refused_content(const std::string& role, const std::string& content) {
  return messages_refusal(R"({"max_tokens": 9, "messages": [{"role": ")" + role +
                          R"(", "content": )" + content + "}]}");
}

TEST(MessagesBody, BecomesAChat) {
  const json chat = chat_of_message(R"("model": "m", "stream": true, "temperature": 0.5, "top_k": 4,
    "system": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind", "cache_control": {}}],
    "messages": [{"role": "user", "content": "hi"}], "stop_sequences": ["x"], "metadata": {"user_id": "u"},
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    "thinking": {"type": "enabled", "budget_tokens": 2048},
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}})");
  EXPECT_EQ(chat, json::parse(R"({"model": "m", "stream": true, "temperature": 0.5, "top_k": 4,
    "messages": [{"role": "system", "content": "be\nkind"}, {"role": "user", "content": "hi"}],
    "stop": ["x"], "max_completion_tokens": 9, "tools": [{"type": "function", "function":
    {"name": "f", "description": "d", "parameters": {"type": "object"}}}], "tool_choice": "required",
    "parallel_tool_calls": false, "chat_template_kwargs": {"enable_thinking": true},
    "thinking.budget_tokens": 2048, "reasoning_effort": "low", "response_format":
    {"type": "json_schema", "json_schema": {"name": "output", "schema": {"type": "object"}}}})"));
}

TEST(MessagesBody, ChoicesOfTools) {
  const auto choice = [](const std::string& value) {
    return chat_of_message(R"("messages": [{"role": "user", "content": "hi"}], "tool_choice": )" +
                           value)["tool_choice"];
  };
  EXPECT_EQ(choice(R"({"type": "auto"})"), "auto");
  EXPECT_EQ(choice(R"({"type": "none"})"), "none");
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})"),
            json::parse(R"({"type": "function", "function": {"name": "f"}})"));
}

TEST(MessagesBody, TurnsWithTools) {
  const json messages = messages_of(R"([{"role": "user", "content": [{"type": "text", "text": "a"},
      {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"},
      {"type": "text", "text": "so"}, {"type": "tool_use", "id": "t1", "name": "f", "input": {"x": 1}},
      {"type": "tool_use", "id": "t2", "name": "g", "input": {}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "7"},
      {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "8"}], "is_error": true},
      {"type": "text", "text": "and?"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t3"}]}])");
  EXPECT_EQ(messages, json::parse(R"([{"role": "user", "content": "a\nb"},
    {"role": "assistant", "content": "so", "reasoning_content": "hm", "tool_calls": [
      {"id": "t1", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
      {"id": "t2", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
    {"role": "tool", "content": "7", "tool_call_id": "t1"},
    {"role": "tool", "content": "8", "tool_call_id": "t2"},
    {"role": "user", "content": "and?"},
    {"role": "tool", "content": "", "tool_call_id": "t3"}])"));
  EXPECT_TRUE(parse_chat_body(json{{"messages", messages}}.dump()));
}

TEST(MessagesBody, AnAssistantsLastMessageGoesOn) {
  const json chat = chat_of_message(
      R"("messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "{"}])");
  EXPECT_EQ(chat["continue_final_message"], true);
  EXPECT_EQ(chat["add_generation_prompt"], false);
  EXPECT_TRUE(parse_chat_body(chat.dump()));
  EXPECT_FALSE(chat_of_message(R"("messages": [{"role": "user", "content": "hi"}])")
                   .contains("continue_final_message"));
}

TEST(MessagesBody, WhatItCannotBe) {
  EXPECT_EQ(messages_refusal(R"({"messages": [{"role": "user", "content": "x"}]})"),
            "max_tokens: must be a whole number, not null");
  EXPECT_EQ(messages_refusal(R"({"max_tokens": 9})"),
            "messages: must be a list of one message or more, not null");
  EXPECT_EQ(
      messages_refusal(R"({"max_tokens": 9, "messages": [{"role": "system", "content": "x"}]})"),
      "messages[0].role: must be user or assistant, not \"system\"");
  EXPECT_EQ(refused_content("user", "7"),
            "messages[0].content: must be text or a list of blocks, not 7");
  EXPECT_EQ(refused_content("user", R"([{"type": "image", "source": {}}])"),
            "messages[0].content[0]: blocks of type \"image\" are not supported");
  EXPECT_EQ(refused_content("user", R"([{"type": "tool_use", "name": "f", "input": {}}])"),
            "messages[0].content[0]: blocks of type \"tool_use\" are not supported");
  EXPECT_THAT(
      refused_content("assistant", R"([{"type": "tool_use", "name": "f", "input": "x"}])"),
      HasSubstr("messages[0].content[0]: must be a tool_use with a name and an input object"));
  EXPECT_EQ(refused_content("user", R"([{"type": "tool_result"}])"),
            "messages[0].content[0].tool_use_id: must be text, not null");
  EXPECT_EQ(refused_content(
                "user",
                R"([{"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]}])"),
            "messages[0].content[0].content[0]: blocks of type \"image\" are not supported");
  const std::string good = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "x"}], )";
  for (const auto& [field, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("n": 2)", "n: not supported in messages"},
           {R"("stop": "x")", "stop: is stop_sequences in messages"},
           {R"("response_format": {})", "response_format: is output_config.format in messages"},
           {R"("mcp_servers": [])", "mcp_servers: not supported, the server runs no tools"},
           {R"("tools": [{"type": "web_search_20250305", "name": "w"}])",
            "tools[0]: tools of type \"web_search_20250305\" are not supported"},
           {R"("tools": [{"name": "w"}])",
            "tools[0]: must be an object with name and input_schema, not {\"name\":\"w\"}"},
           {R"("thinking": true)",
            "thinking: must be an object of type enabled, adaptive or disabled, not true"},
           {R"("tool_choice": "any")",
            "tool_choice: must be an object of type auto, any, tool (with a name) or none, not "
            "\"any\""},
           {R"("output_config": {"format": {"type": "json"}})",
            "output_config.format: must be an object of type json_schema with a schema, not "
            "{\"type\":\"json\"}"}}) {
    EXPECT_EQ(messages_refusal(good + field + "}"), message);
  }
}

TEST(MessagesBody, UnknownFieldsAreReported) {
  const json chat = chat_of_message(
      R"("messages": [{"role": "user", "content": "x"}], "service_tier": "auto", "seed": 3, "stop": null)");
  const Result<GenerationBody> body = parse_chat_body(chat.dump());
  ASSERT_TRUE(body);
  EXPECT_THAT(body->ignored, UnorderedElementsAre("service_tier"));
  EXPECT_EQ(body->sampling.seed, 3);
}

RequestUpdate message_update(const std::string& text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.text = text;
  out.finish_reason = reason;
  out.num_prompt_tokens = 7;
  out.num_cached_tokens = 4;
  out.num_output_tokens = 2;
  return out;
}

std::unique_ptr<AnswerWriter> messages_writer(const ChatParserOptions& options) {
  const AnswerInfo info{.id = "msg-1", .model = "m", .created = 5};
  return make_messages_writer(info, 7, [options](size_t) { return make_chat_parser(options); });
}

json whole(const RequestUpdate& ended,
           const ChatParserOptions& options = {.reasoning = ReasoningFormat::kThink}) {
  return json::parse(messages_writer(options)->whole({&ended, 1}));
}

TEST(MessagesWriter, Whole) {
  EXPECT_EQ(whole(message_update("<think>hm</think>yes", FinishReason::kLength)),
            json::parse(R"({"id": "msg-1",
    "type": "message", "role": "assistant", "model": "m", "content": [
      {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "text", "text": "yes"}],
    "stop_reason": "max_tokens", "stop_sequence": null, "usage": {"input_tokens": 3,
    "cache_creation_input_tokens": 0, "cache_read_input_tokens": 4, "output_tokens": 2}})"));
}

TEST(MessagesWriter, ReasonsToStop) {
  EXPECT_EQ(whole(message_update("a", FinishReason::kStop))["stop_reason"], "end_turn");
  RequestUpdate stopped = message_update("a", FinishReason::kStop);
  stopped.stop_reason = std::string("END");
  EXPECT_EQ(whole(stopped)["stop_reason"], "stop_sequence");
  EXPECT_EQ(whole(stopped)["stop_sequence"], "END");
  stopped.stop_reason = int64_t{7};  // a token id that the model ends with
  EXPECT_EQ(whole(stopped)["stop_reason"], "end_turn");
  const json call =
      whole(message_update("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>",
                           FinishReason::kStop),
            {.format = ToolFormat::kHermes});
  EXPECT_EQ(call["stop_reason"], "tool_use");
  EXPECT_EQ(call["content"][0]["name"], "f");
  EXPECT_EQ(call["content"][0]["input"], json::parse(R"({"x": 1})"));
}

TEST(MessagesWriter, AnEmptyAnswerHasNoBlocks) {
  EXPECT_EQ(whole(message_update("", FinishReason::kStop))["content"], json::array());
}

TEST(MessagesWriter, StreamsTextThenACall) {
  const auto stream = messages_writer({.format = ToolFormat::kHermes});
  std::string text = stream->events(0, message_update("so "));
  text += stream->events(
      0, message_update("<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"));
  const std::vector<RequestUpdate> ended{message_update("", FinishReason::kStop)};
  text += stream->events(0, ended[0]);
  text += stream->last_events(ended, false);
  std::vector<std::string> types;
  std::vector<json> events;
  for (size_t at = text.find("data: "); at != std::string::npos; at = text.find("data: ", at + 1)) {
    events.push_back(json::parse(text.substr(at + 6, text.find("\n\n", at) - at - 6)));
    types.push_back(events.back()["type"]);
    const std::string name = "event: " + types.back() + "\n";
    EXPECT_EQ(text.substr(at - name.size(), name.size()), name);
  }
  EXPECT_THAT(types,
              ElementsAre("message_start",
                          "content_block_start",
                          "content_block_delta",
                          "content_block_stop",
                          "content_block_start",
                          "content_block_delta",
                          "content_block_stop",
                          "message_delta",
                          "message_stop"));
  EXPECT_EQ(events[0]["message"]["usage"]["input_tokens"], 7);
  EXPECT_EQ(events[0]["message"]["content"], json::array());
  EXPECT_EQ(events[2], json::parse(R"({"type": "content_block_delta", "index": 0,
    "delta": {"type": "text_delta", "text": "so"}})"));
  EXPECT_EQ(events[4]["index"], 1);
  EXPECT_EQ(events[4]["content_block"]["name"], "f");
  EXPECT_EQ(json::parse(events[5]["delta"]["partial_json"].get<std::string>()),
            json::parse(R"({"x": 1})"));
  EXPECT_EQ(events[7]["delta"]["stop_reason"], "tool_use");
  EXPECT_EQ(events[7]["usage"]["output_tokens"], 2);
}

TEST(MessagesWriter, AnErrorEndsTheStream) {
  const std::string text = messages_writer({.reasoning = ReasoningFormat::kThink})
                               ->error_events({503, "service_unavailable", "bye"});
  EXPECT_EQ(text,
            "event: error\ndata: "
            "{\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"bye\","
            "\"param\":null}}\n\n");
}

TEST(MessagesError, TakesTheErrorOfAReply) {
  const HttpReply reply =
      as_messages_reply(error_reply({429, "rate_limit_error", "later", "n", {}, 1}));
  EXPECT_EQ(json::parse(reply.body), json::parse(R"({"type": "error", "error":
    {"type": "rate_limit_error", "message": "later", "param": "n"}})"));
  EXPECT_EQ(reply.headers.at(0).first, "Retry-After");
  EXPECT_EQ(as_messages_reply(HttpReply{.body = "x"}).body, "x");
}

}  // namespace
}  // namespace warprow
