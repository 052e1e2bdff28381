// SPDX-License-Identifier: Apache-2.0
#include "server/response/answer_writer.h"

#include "server/chat/tool_parser.h"
#include "server/endpoints/writers.h"
#include "server/response/answer_json.h"
#include "server/response/api_error.h"

#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

namespace warprow {
namespace {

std::string token_bytes(TokenId id) {
  static constexpr const char* kTokens[] = {"a", " b", "\xc3\xa9", "\xc3"};
  return kTokens[id];
}

// An answer with the number of choices that update() makes.
std::string timings(int num_choices) {
  const std::string prompt_n = std::to_string(2 * num_choices);
  return R"("timings":{"queue_ms":0.5,"cache_n":)" + std::to_string(num_choices) +
         R"(,"prompt_n":)" + prompt_n + R"(,"prompt_ms":4.0,"prompt_per_second":)" +
         std::to_string(500 * num_choices) + R"(.0,"predicted_n":)" + prompt_n +
         R"(,"predicted_ms":10.0,"predicted_per_second":)" + std::to_string(100 * num_choices) +
         ".0}";
}

enum class WriterKind { kCompletions, kChat };

std::unique_ptr<AnswerWriter> writer(WriterKind kind, size_t num_choices = 1) {
  const AnswerInfo info{.id = "id-1", .model = "m", .created = 5};
  const AnswerShape shape{.choices_per_prompt = num_choices};
  return kind == WriterKind::kChat ? make_chat_writer(info, token_bytes, shape, {})
                                   : make_completions_writer(info, token_bytes, shape);
}

RequestUpdate update(const std::string& text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.text = text;
  out.finish_reason = reason;
  if (reason != FinishReason::kNone) {
    out.num_prompt_tokens = 3;
    out.num_output_tokens = 2;
    out.num_cached_tokens = 1;
    out.timings = {.queue_ms = 0.5, .prompt_ms = 4, .predicted_ms = 10};
  }
  return out;
}

TEST(AnswerWriter, CompletionWhole) {
  RequestUpdate second = update("yo", FinishReason::kLength);
  RequestUpdate first = update("hi", FinishReason::kStop);
  first.stop_reason = std::string("END");
  second.logprobs = {{.token_id = 2, .logprob = -0.5F, .rank = 1, .top = {{0, -0.25F}}},
                     {.token_id = 1, .logprob = -1.1F, .rank = 1, .top = {}}};
  const std::vector<RequestUpdate> choices{first, second};
  EXPECT_EQ(
      writer(WriterKind::kCompletions, 2)->whole(choices),
      R"({"id":"id-1","object":"text_completion","created":5,"model":"m","choices":[)"
      R"({"index":0,"text":"hi","logprobs":null,"finish_reason":"stop","stop_reason":"END"},)"
      R"({"index":1,"text":"yo","logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-1.1],)"
      R"("tokens":["é"," b"],"top_logprobs":[{"é":-0.5,"a":-0.25},{" b":-1.1}]},)"
      R"("finish_reason":"length","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
      R"("prompt_tokens_details":{"cached_tokens":1}},)" +
          timings(2) + "}");
}

nlohmann::json parsed(const std::string& json) { return nlohmann::json::parse(json); }

// The data of the events, without [DONE].
std::vector<nlohmann::json> parsed_events(const std::string& events) {
  std::vector<nlohmann::json> out;
  for (size_t at = 0; at < events.size();) {
    const size_t end = events.find("\n\n", at);
    out.push_back(parsed(events.substr(at + 6, end - at - 6)));
    at = end + 2;
  }
  return out;
}

TEST(AnswerWriter, TokenIdsOfCompletions) {
  RequestUpdate first = update("a", FinishReason::kStop);
  first.token_ids = {0};
  RequestUpdate second = update(" b", FinishReason::kStop);
  second.token_ids = {1, 1};
  const std::vector<RequestUpdate> choices{first, second};
  const AnswerShape shape{.num_prompts = 2, .prompt_token_ids = {{7, 8}, {9}}};
  const auto whole = parsed(make_completions_writer({}, token_bytes, shape)->whole(choices));
  EXPECT_EQ(whole["choices"][0]["prompt_token_ids"], parsed("[7, 8]"));
  EXPECT_EQ(whole["choices"][0]["token_ids"], parsed("[0]"));
  EXPECT_EQ(whole["choices"][1]["prompt_token_ids"], parsed("[9]"));
  EXPECT_EQ(whole["choices"][1]["token_ids"], parsed("[1, 1]"));
  const auto stream = make_completions_writer({}, token_bytes, shape);
  RequestUpdate half;  // half of a character: no text yet
  half.token_ids = {3};
  const auto begun = parsed_events(stream->events(1, half)).at(0)["choices"][0];
  EXPECT_EQ(begun["prompt_token_ids"], parsed("[9]"));
  EXPECT_EQ(begun["token_ids"], parsed("[3]"));
  const auto ended = parsed_events(stream->events(1, second)).at(0)["choices"][0];
  EXPECT_FALSE(ended.contains("prompt_token_ids"));
  EXPECT_EQ(ended["token_ids"], parsed("[1, 1]"));
}

TEST(AnswerWriter, TokenIdsAndEchoOfChats) {
  RequestUpdate answer = update(" b", FinishReason::kStop);
  answer.token_ids = {1};
  const AnswerShape shape{.echo = {"a"}, .prompt_token_ids = {{7, 8}}};
  const auto whole = parsed(make_chat_writer({}, token_bytes, shape, {})->whole({&answer, 1}));
  EXPECT_EQ(whole["prompt_token_ids"], parsed("[7, 8]"));
  EXPECT_EQ(whole["choices"][0]["token_ids"], parsed("[1]"));
  EXPECT_EQ(whole["choices"][0]["message"]["content"], "a b");
  const auto stream = make_chat_writer({}, token_bytes, shape, {});
  const auto events = parsed_events(stream->events(0, answer));
  ASSERT_EQ(events.size(), 3U);  // the role, the echoed prompt, the answer
  EXPECT_EQ(events[0]["prompt_token_ids"], parsed("[7, 8]"));
  EXPECT_EQ(events[1]["choices"][0]["delta"]["content"], "a");
  EXPECT_FALSE(events[1].contains("prompt_token_ids"));
  EXPECT_EQ(events[2]["choices"][0]["delta"]["content"], " b");
  EXPECT_EQ(events[2]["choices"][0]["token_ids"], parsed("[1]"));
}

TEST(AnswerWriter, CompletionStream) {
  const auto stream = writer(WriterKind::kCompletions);
  EXPECT_EQ(stream->events(0, update("")), "");
  EXPECT_EQ(stream->events(0, update("hi")),
            "data: {\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
            "\"choices\":[{\"index\":0,\"text\":\"hi\",\"logprobs\":null,\"finish_reason\":null,"
            "\"stop_reason\":null}]}\n\n");
  const std::vector<RequestUpdate> ended{update("", FinishReason::kStop)};
  EXPECT_NE(stream->events(0, ended[0]).find("\"finish_reason\":\"stop\""), std::string::npos);
  EXPECT_EQ(stream->last_events(ended, false), "data: [DONE]\n\n");
  EXPECT_EQ(
      stream->last_events(ended, true),
      "data: {\"id\":\"id-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\","
      "\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,\"total_tokens\":5,"
      "\"prompt_tokens_details\":{\"cached_tokens\":1}}}\n\ndata: [DONE]\n\n");
}

TEST(AnswerWriter, PromptsAreEchoedOnceAndCountedOnce) {
  const AnswerShape shape{.num_prompts = 2, .choices_per_prompt = 2, .echo = {"A ", "B "}};
  const std::vector<RequestUpdate> choices(4, update("x", FinishReason::kStop));
  const std::string whole = make_completions_writer({}, token_bytes, shape)->whole(choices);
  EXPECT_NE(whole.find(R"("index":1,"text":"A x")"), std::string::npos) << whole;
  EXPECT_NE(whole.find(R"("index":2,"text":"B x")"), std::string::npos) << whole;
  EXPECT_NE(whole.find(R"("prompt_tokens":6,"completion_tokens":8)"), std::string::npos) << whole;
  const auto stream = make_completions_writer({}, token_bytes, shape);
  EXPECT_NE(stream->events(3, update("x")).find(R"("text":"B x")"), std::string::npos);
  EXPECT_NE(stream->events(3, update("y")).find(R"("text":"y")"), std::string::npos);
  const AnswerShape scored{.echo = {"A"}, .only_prompt = true};
  const std::string only =
      make_completions_writer({}, token_bytes, scored)->whole(std::span(choices).first(1));
  EXPECT_NE(only.find(R"("text":"A")"), std::string::npos) << only;
  EXPECT_NE(only.find(R"("completion_tokens":0)"), std::string::npos) << only;
}

TEST(AnswerWriter, EveryStreamedChoiceEchoesThePromptsLogprobs) {
  const AnswerShape shape{
      .num_prompts = 2, .choices_per_prompt = 2, .echo = {"a b", "a"}, .first_tokens = {0, 0}};
  const auto tokens = [](const nlohmann::json& event) {
    return event["choices"][0]["logprobs"]["tokens"].dump();
  };
  RequestUpdate other = update("é");
  other.logprobs = {{.token_id = 2, .logprob = -1.0F, .rank = 1, .top = {}}};
  RequestUpdate first = other;
  first.prompt_logprobs = {{.token_id = 1, .logprob = -2.0F, .rank = 3, .top = {}}};
  const auto stream = make_completions_writer({}, token_bytes, shape);
  EXPECT_EQ(stream->events(1, other), "");  // the prompt's logprobs have not arrived
  EXPECT_EQ(stream->events(1, other), "");
  const auto begun = parsed_events(stream->events(0, first));
  ASSERT_EQ(begun.size(), 2U);
  EXPECT_EQ(begun[0]["choices"][0]["index"], 0);
  EXPECT_EQ(tokens(begun[0]), R"(["a"," b","é"])");
  EXPECT_EQ(begun[1]["choices"][0]["index"], 1);
  EXPECT_EQ(begun[1]["choices"][0]["text"], "a béé");
  EXPECT_EQ(tokens(begun[1]), R"(["a"," b","é","é"])");
  EXPECT_EQ(tokens(parsed_events(stream->events(1, other)).at(0)), R"(["é"])");
  // A prompt of one token has no logprobs of its own, and the first choice may finish first.
  EXPECT_EQ(tokens(parsed_events(stream->events(2, other)).at(0)), R"(["a","é"])");
  EXPECT_EQ(tokens(parsed_events(stream->events(3, other)).at(0)), R"(["a","é"])");
}

TEST(AnswerWriter, TextOffsetsGoOnFromChunkToChunk) {
  const auto stream = writer(WriterKind::kCompletions);
  RequestUpdate piece = update("é b");
  piece.logprobs = {{2, -1.0F, 1, {}}, {1, -1.0F, 1, {}}};
  EXPECT_NE(stream->events(0, piece).find("\"text_offset\":[0,1]"), std::string::npos);
  EXPECT_NE(stream->events(0, piece).find("\"text_offset\":[3,4]"), std::string::npos);
}

TEST(AnswerWriter, ChatWhole) {
  RequestUpdate only = update("hi", FinishReason::kStop);
  only.logprobs = {{.token_id = 3, .logprob = -0.5F, .rank = 1, .top = {{0, -0.25F}}}};
  const std::vector<RequestUpdate> choices{only};
  EXPECT_EQ(
      writer(WriterKind::kChat)->whole(choices),
      "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\",\"choices\":["
      "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},\"logprobs\":{"
      "\"content\":["
      "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[195],\"top_logprobs\":["
      "{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]}]}]},\"finish_reason\":\"stop\","
      "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
      "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}," +
          timings(1) + "}");
}

TEST(AnswerWriter, ChatStreamBringsTheRoleOnceForEachChoice) {
  const std::string head =
      R"(data: {"id":"id-1","object":"chat.completion.chunk","created":5,"model":"m","choices":[)";
  const auto stream = writer(WriterKind::kChat, 2);
  EXPECT_EQ(
      stream->events(1, update("hi")),
      head +
          "{\"index\":1,\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,"
          "\"finish_reason\":null}]}\n\n" +
          head +
          "{\"index\":1,\"delta\":{\"content\":\"hi\"},\"logprobs\":null,"
          "\"finish_reason\":null}]}\n\n");
  EXPECT_EQ(stream->events(1, update("", FinishReason::kLength)),
            head +
                "{\"index\":1,\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\","
                "\"stop_reason\":null}]," +
                timings(1) + "}\n\n");
  EXPECT_NE(stream->events(0, update("")).find("\"role\""), std::string::npos);
}

TEST(AnswerWriter, ACallHasOneEntryInAChunk) {
  const MakeChatParser parser = [](size_t) {
    return make_chat_parser({.format = ToolFormat::kNamed, .function = "f", .id_prefix = "call_"});
  };
  const auto stream = make_chat_writer({}, token_bytes, {}, parser);
  EXPECT_NE(stream->events(0, update("{"))
                .find(R"("tool_calls":[{"index":0,"id":"call_0","type":"function",)"
                      R"("function":{"name":"f","arguments":"{"}}])"),
            std::string::npos);
  const std::string last = stream->events(0, update("}", FinishReason::kStop));
  EXPECT_NE(last.find(R"("tool_calls":[{"index":0,"function":{"arguments":"}"}}])"),
            std::string::npos)
      << last;
  EXPECT_NE(last.find(R"("finish_reason":"tool_calls")"), std::string::npos) << last;
}

TEST(ApiError, NamesStatusAndField) {
  const ApiError wrong = api_error({ErrorCode::kInvalidArgument, "top_p: 2 is outside (0, 1]"});
  EXPECT_EQ(wrong.status, 400);
  EXPECT_EQ(error_json(wrong),
            R"({"error":{"message":"top_p: 2 is outside (0, 1]","type":"invalid_request_error",)"
            R"("param":"top_p","code":400}})");
  EXPECT_EQ(api_error({ErrorCode::kInvalidArgument, "messages[1].role: must be text"}).param,
            "messages[1].role");
  EXPECT_EQ(api_error({ErrorCode::kInvalidArgument, "the body: no"}).param, "");
  EXPECT_NE(
      error_json({.type = "context_length_exceeded", .message = "m", .context = std::pair(9, 8)})
          .find(R"("code":400,"n_prompt_tokens":9,"n_ctx":8})"),
      std::string::npos);
  EXPECT_EQ(error_reply({.status = 429, .message = "m", .retry_after_s = 3}).headers.at(0),
            std::pair(std::string("Retry-After"), std::string("3")));
  EXPECT_EQ(api_error({ErrorCode::kUnsupported, "echo: not supported yet"}).status, 400);
  EXPECT_EQ(api_error({ErrorCode::kInternal, "x"}).status, 500);
  EXPECT_EQ(writer(WriterKind::kChat)->error_events({400, "t", "m"}),
            "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"param\":null,\"code\":400}}\n\n"
            "data: [DONE]\n\n");
}

}  // namespace
}  // namespace warprow
