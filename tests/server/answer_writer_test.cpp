// SPDX-License-Identifier: Apache-2.0
#include "server/answer_writer.h"

#include "server/api_error.h"

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::string_view token_bytes(TokenId id) {
  static constexpr std::string_view kTokens[] = {"a", " b", "\xc3\xa9", "\xc3"};
  return kTokens[id];
}

std::unique_ptr<AnswerWriter> writer(Endpoint endpoint, size_t num_choices = 1) {
  return make_answer_writer(
      endpoint, {.id = "id-1", .model = "m", .created = 5}, token_bytes, num_choices);
}

RequestUpdate update(const std::string& text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.text = text;
  out.finish_reason = reason;
  if (reason != FinishReason::kNone) {
    out.num_prompt_tokens = 3;
    out.num_output_tokens = 2;
    out.num_cached_tokens = 1;
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
      writer(Endpoint::kCompletions, 2)->whole(choices),
      R"({"id":"id-1","object":"text_completion","created":5,"model":"m","choices":[)"
      R"({"index":0,"text":"hi","logprobs":null,"finish_reason":"stop","stop_reason":"END"},)"
      R"({"index":1,"text":"yo","logprobs":{"text_offset":[0,1],"token_logprobs":[-0.5,-1.1],)"
      R"("tokens":["é"," b"],"top_logprobs":[{"é":-0.5,"a":-0.25},{" b":-1.1}]},)"
      R"("finish_reason":"length","stop_reason":null}],)"
      R"("usage":{"prompt_tokens":3,"completion_tokens":4,"total_tokens":7,)"
      R"("prompt_tokens_details":{"cached_tokens":1}}})");
}

TEST(AnswerWriter, CompletionStream) {
  const auto stream = writer(Endpoint::kCompletions);
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

TEST(AnswerWriter, TextOffsetsGoOnFromChunkToChunk) {
  const auto stream = writer(Endpoint::kCompletions);
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
      writer(Endpoint::kChat)->whole(choices),
      "{\"id\":\"id-1\",\"object\":\"chat.completion\",\"created\":5,\"model\":\"m\",\"choices\":["
      "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"hi\"},\"logprobs\":{"
      "\"content\":["
      "{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[195],\"top_logprobs\":["
      "{\"token\":\"a\",\"logprob\":-0.25,\"bytes\":[97]}]}]},\"finish_reason\":\"stop\","
      "\"stop_reason\":null}],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2,"
      "\"total_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":1}}}");
}

TEST(AnswerWriter, ChatStreamBringsTheRoleOnceForEachChoice) {
  const std::string head =
      R"(data: {"id":"id-1","object":"chat.completion.chunk","created":5,"model":"m","choices":[)";
  const auto stream = writer(Endpoint::kChat, 2);
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
                "\"stop_reason\":null}]}\n\n");
  EXPECT_NE(stream->events(0, update("")).find("\"role\""), std::string::npos);
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
  EXPECT_EQ(api_error({ErrorCode::kUnsupported, "echo: not supported yet"}).status, 400);
  EXPECT_EQ(api_error({ErrorCode::kInternal, "x"}).status, 500);
  EXPECT_EQ(error_events({400, "t", "m"}),
            "data: {\"error\":{\"message\":\"m\",\"type\":\"t\",\"param\":null,\"code\":400}}\n\n"
            "data: [DONE]\n\n");
}

}  // namespace
}  // namespace warprow
