// SPDX-License-Identifier: Apache-2.0
// /v1/responses: request bodies, answer objects and events.
#include "server/chat/tool_parser.h"
#include "server/endpoints/chat_body.h"
#include "server/endpoints/responses_body.h"
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

json chat_of_response(const std::string& body) {
  const Result<ResponsesBody> read = parse_responses_body(body);
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  return read ? json::parse(read->chat.dump()) : json();
}
std::string responses_refusal(const std::string& body) {
  const Result<ResponsesBody> read = parse_responses_body(body);
  EXPECT_FALSE(read) << body;
  return read ? "" : read.error().message;
}

TEST(ResponsesBody, BecomesAChat) {
  const json chat =
      chat_of_response(R"({"instructions": "be kind", "input": "hi", "max_output_tokens": 9,
    "temperature": 0.5, "store": false, "metadata": {"a": "b"}, "reasoning": {"effort": "low"},
    "tools": [{"type": "function", "name": "f", "parameters": {}, "strict": true}],
    "tool_choice": {"type": "function", "name": "f"},
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}}})");
  EXPECT_EQ(chat, json::parse(R"({"messages": [{"role": "system", "content": "be kind"},
    {"role": "user", "content": "hi"}], "max_completion_tokens": 9, "temperature": 0.5, "store": false,
    "reasoning_effort": "low", "tools": [{"type": "function",
    "function": {"name": "f", "parameters": {}, "strict": true}}],
    "tool_choice": {"type": "function", "function": {"name": "f"}}, "response_format":
    {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}})"));
}

TEST(ResponsesBody, WhatWouldChangeTheAnswerIsRefused) {
  for (const auto& [field, message] : std::vector<std::pair<std::string, std::string>>{
           {R"("n": 2)", "n: not supported in responses"},
           {R"("messages": [])", "messages: is input in responses"},
           {R"("max_tokens": 3)", "max_tokens: is max_output_tokens in responses"},
           {R"("max_completion_tokens": 3)",
            "max_completion_tokens: is max_output_tokens in responses"},
           {R"("response_format": {})", "response_format: is text.format in responses"},
           {R"("echo": true)", "echo: not supported in responses"},
           {R"("logprobs": true)", "logprobs: not supported in responses"},
           {R"("prompt_logprobs": 0)", "prompt_logprobs: not supported in responses"},
           {R"("return_token_ids": true)", "return_token_ids: not supported in responses"},
           {R"("truncation": "auto")", "truncation: not supported in responses"},
           {R"("include": ["message.output_text.logprobs"])", "include: not supported"},
           {R"("include": 3)", "include: must be a list, not 3"},
           {R"("text": "x")", "text: must be an object, not \"x\""},
           {R"("reasoning": 3)", "reasoning: must be an object, not 3"},
           {R"("stream_options": 3)", "stream_options: must be an object, not 3"}}) {
    EXPECT_EQ(responses_refusal(R"({"input": "x", )" + field + "}"), message);
  }
}

// Fields that clients send by default, or as null.
TEST(ResponsesBody, WhatChangesNothingIsNotNamed) {
  const auto ignored = [](const std::string& fields) {
    const json chat = chat_of_response(R"({"input": "x", "stream": true, )" + fields + "}");
    const Result<GenerationBody> body = parse_chat_body(chat.dump());
    EXPECT_TRUE(body) << fields;
    return body ? body->ignored : std::vector<std::string>{};
  };
  EXPECT_THAT(
      ignored(R"("n": 1, "echo": false, "logprobs": false, "top_logprobs": 0, "store": false,
    "truncation": "disabled", "include": [], "metadata": {"a": "b"}, "messages": null, "user": null,
    "stream_options": {"include_usage": true, "include_obfuscation": false},
    "text": {"format": {"type": "text"}, "verbosity": null},
    "reasoning": {"effort": "low", "summary": null})"),
      ElementsAre());
  EXPECT_THAT(ignored(R"("store": true, "include": ["reasoning.encrypted_content"], "user": "me",
    "stream_options": {"include_obfuscation": true}, "text": {"verbosity": "low"},
    "reasoning": {"summary": "auto"}, "service_tier": "auto")"),
              UnorderedElementsAre("store",
                                   "include",
                                   "user",
                                   "stream_options.include_obfuscation",
                                   "text.verbosity",
                                   "reasoning.summary",
                                   "service_tier"));
}

TEST(ResponsesBody, ItemsOfAnEarlierTurn) {
  const json chat = chat_of_response(R"({"input": [{"role": "developer", "content": "d"},
    {"type": "reasoning", "id": "r"},
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "7"},
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "so?"}]}]})");
  EXPECT_EQ(chat["messages"][0]["role"], "system");
  EXPECT_EQ(chat["messages"][1]["tool_calls"][0]["function"]["name"], "f");
  EXPECT_EQ(chat["messages"][2],
            json::parse(R"({"role": "tool", "content": "7", "tool_call_id": "c"})"));
  EXPECT_EQ(chat["messages"][3]["content"][0]["text"], "so?");
  EXPECT_TRUE(parse_chat_body(chat.dump()));
}

// The text of earlier reasoning belongs to the call or message behind it; the template decides what becomes of it.
TEST(ResponsesBody, EarlierReasoningStaysWithItsMessage) {
  const std::string reasoning =
      R"({"type": "reasoning", "id": "r", "content": [{"type": "reasoning_text", "text": "I add."}]})";
  const json chat =
      chat_of_response(R"({"input": [{"role": "user", "content": "7?"}, )" + reasoning + R"(,
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": "7"}, )" +
                       reasoning + R"(, {"role": "assistant", "content": "8"}, )" + reasoning +
                       R"(, {"role": "user", "content": "so?"}, )" + reasoning + "]}");
  const json& messages = chat["messages"];
  ASSERT_EQ(messages.size(), 5U) << messages;
  EXPECT_EQ(messages[1]["reasoning_content"], "I add.");
  EXPECT_EQ(messages[1]["tool_calls"].size(), 1U);
  EXPECT_EQ(messages[3],
            json::parse(R"({"role": "assistant", "content": "8", "reasoning_content": "I add."})"));
  EXPECT_EQ(messages[4], json::parse(R"({"role": "user", "content": "so?"})"));
  EXPECT_TRUE(parse_chat_body(chat.dump()));
}

TEST(ResponsesBody, WhatItCannotBe) {
  EXPECT_THAT(responses_refusal("{}"), HasSubstr("input: must be text"));
  EXPECT_THAT(responses_refusal(R"({"input": [7]})"), HasSubstr("input[0].content: must be text"));
  EXPECT_THAT(responses_refusal(R"({"input": "x", "previous_response_id": "r"})"),
              HasSubstr("not stored"));
  EXPECT_THAT(responses_refusal(R"({"input": "x", "tools": [{"type": "web_search"}]})"),
              HasSubstr("tools[0]"));
  EXPECT_THAT(
      responses_refusal(R"({"input": [{"type": "function_call", "name": "f", "arguments": ")" +
                        std::string(65, '[') + R"("}]})"),
      HasSubstr("input[0].arguments: nests deeper than 64 levels"));
}

RequestUpdate response_update(const std::string& text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.text = text;
  out.finish_reason = reason;
  out.num_prompt_tokens = 3;
  out.num_output_tokens = 2;
  return out;
}

std::unique_ptr<AnswerWriter> responses_writer(const ChatParserOptions& options) {
  const AnswerInfo info{.id = "resp-1", .model = "m", .created = 5};
  return make_responses_writer(
      info, {{"store", false}}, [options](size_t) { return make_chat_parser(options); });
}

TEST(ResponsesWriter, Whole) {
  const std::vector<RequestUpdate> choices{
      response_update("<think>hm</think>yes", FinishReason::kLength)};
  const json out =
      json::parse(responses_writer({.reasoning = ReasoningFormat::kThink})->whole(choices));
  EXPECT_EQ(out["status"], "incomplete");
  EXPECT_EQ(out["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(out["output"][0]["content"][0]["text"], "hm");
  EXPECT_EQ(out["output"][1]["content"][0]["text"], "yes");
  EXPECT_EQ(out["usage"]["total_tokens"], 5);
  EXPECT_EQ(out["store"], false);
}

TEST(ResponsesWriter, StreamsTextThenACall) {
  const auto stream = responses_writer({.format = ToolFormat::kHermes});
  std::string text = stream->events(0, response_update("so "));
  text += stream->events(
      0, response_update("<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"));
  const std::vector<RequestUpdate> ended{response_update("", FinishReason::kStop)};
  text += stream->events(0, ended[0]);
  text += stream->last_events(ended, false);
  std::vector<std::string> types;
  json last;
  int64_t number = 0;
  for (size_t at = text.find("data: "); at != std::string::npos; at = text.find("data: ", at + 1)) {
    last = json::parse(text.substr(at + 6, text.find("\n\n", at) - at - 6));
    EXPECT_EQ(last["sequence_number"], number++);
    types.push_back(last["type"].get<std::string>().substr(9));
  }
  EXPECT_THAT(types,
              ElementsAre("created",
                          "in_progress",
                          "output_item.added",
                          "content_part.added",
                          "output_text.delta",
                          "output_text.done",
                          "content_part.done",
                          "output_item.done",
                          "output_item.added",
                          "function_call_arguments.delta",
                          "function_call_arguments.done",
                          "output_item.done",
                          "completed"));
  EXPECT_EQ(last["response"]["output"][0]["content"][0]["text"], "so");
  EXPECT_EQ(last["response"]["output"][1]["arguments"], "{}");
}

}  // namespace
}  // namespace warprow
