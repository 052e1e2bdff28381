// SPDX-License-Identifier: Apache-2.0
#include "cli/answer.h"

#include <limits>
#include <span>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

RequestUpdate piece(const char* text, std::vector<TokenId> ids) {
  RequestUpdate update;
  update.text = text;
  update.token_ids = std::move(ids);
  return update;
}

TEST(AnswerJson, HasTheDocumentedShape) {
  Answer answer;
  answer.add(piece("Par", {7}));
  EXPECT_FALSE(answer.finished());
  RequestUpdate last = piece("is", {8, 9});
  last.finish_reason = FinishReason::kStop;
  last.stop_reason = std::string("END");
  last.num_prompt_tokens = 5;
  last.num_output_tokens = 3;
  last.num_cached_tokens = 4;
  last.timings = {.queue_ms = 0.5, .prompt_ms = 2, .predicted_ms = 10};
  answer.add(last);
  EXPECT_TRUE(answer.finished());

  const std::vector<TokenId> prompt{1, 2};
  EXPECT_EQ(
      answer_json(prompt, std::span(&answer, 1)).dump(),
      R"({"prompt_token_ids":[1,2],"choices":[{"index":0,"token_ids":[7,8,9],"text":"Paris","finish_reason":"stop",)"
      R"("stop_reason":"END","logprobs":null}],"usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,)"
      R"("prompt_tokens_details":{"cached_tokens":4}},"timings":{"queue_ms":0.5,"prompt_n":1,"prompt_ms":2.0,)"
      R"("prompt_per_second":500.0,"predicted_n":3,"predicted_ms":10.0,"predicted_per_second":200.0}})");
}

TEST(AnswerJson, ChoicesAreCountedTogetherAndThePromptOnce) {
  std::vector<Answer> answers(2);
  RequestUpdate last = piece("ab", {1, 2});
  last.finish_reason = FinishReason::kStop;
  last.num_prompt_tokens = 5;
  last.num_output_tokens = 2;
  last.timings = {.queue_ms = 0.5, .prompt_ms = 2, .predicted_ms = 10};
  answers[0].add(last);
  last = piece("abcd", {1, 2, 3, 4});
  last.finish_reason = FinishReason::kLength;
  last.num_prompt_tokens = 5;
  last.num_output_tokens = 4;
  last.num_cached_tokens = 4;
  last.timings = {.queue_ms = 9, .prompt_ms = 9, .predicted_ms = 20};
  answers[1].add(last);
  const AnswerJson json = answer_json({}, answers);
  ASSERT_EQ(json["choices"].size(), 2U);
  EXPECT_EQ(json["choices"][1]["index"], 1);
  EXPECT_EQ(json["choices"][1]["text"], "abcd");
  EXPECT_EQ(json["choices"][1]["finish_reason"], "length");
  EXPECT_EQ(
      json["usage"].dump(),
      R"({"prompt_tokens":5,"completion_tokens":6,"total_tokens":11,"prompt_tokens_details":{"cached_tokens":0}})");
  EXPECT_EQ(json["timings"]["prompt_ms"], 2.0);
  EXPECT_EQ(json["timings"]["predicted_n"], 6);
  EXPECT_EQ(json["timings"]["predicted_ms"], 20.0);
  EXPECT_EQ(json["timings"]["predicted_per_second"], 200.0);
}

TEST(AnswerJson, StopReasonIsAnIdATextOrNull) {
  Answer answer;
  RequestUpdate last;
  last.finish_reason = FinishReason::kStop;
  last.stop_reason = int64_t{198};
  answer.add(last);
  EXPECT_EQ(answer_json({}, std::span(&answer, 1))["choices"][0]["stop_reason"], 198);
  last.stop_reason = std::monostate{};
  answer.add(last);
  EXPECT_TRUE(answer_json({}, std::span(&answer, 1))["choices"][0]["stop_reason"].is_null());
}

TEST(AnswerJson, LogprobsAreShortAndFinite) {
  Answer answer;
  RequestUpdate update = piece("a", {3});
  update.logprobs = {
      {.token_id = 3,
       .logprob = -0.1F,
       .rank = 1,
       .top = {{.token_id = 4, .logprob = -std::numeric_limits<float>::infinity()}}}};
  answer.add(update);
  EXPECT_EQ(answer_json({}, std::span(&answer, 1))["choices"][0]["logprobs"].dump(),
            R"([{"token_id":3,"logprob":-0.1,"rank":1,"top":[{"token_id":4,"logprob":-9999.0}]}])");
}

TEST(AnswerJson, WhatIsToldOfThePromptComesOnceAndOfAllUpdates) {
  Answer answer;
  RequestUpdate first = piece("a", {3});
  first.prompt_logprobs = {{.token_id = 9, .logprob = -0.5F, .rank = 2, .top = {}}};
  first.hidden_states = {1.0F, 0.1F, -2.0F, 0.0F};
  first.hidden_width = 2;
  answer.add(first);
  RequestUpdate second = piece("b", {4});
  second.hidden_states = {5.0F, 6.0F};
  second.hidden_width = 2;
  answer.add(second);
  const AnswerJson json = answer_json({}, std::span(&answer, 1));
  EXPECT_EQ(json["prompt_logprobs"].dump(),
            R"([null,{"token_id":9,"logprob":-0.5,"rank":2,"top":[]}])");
  EXPECT_EQ(json["choices"][0]["hidden_states"].dump(), "[[1.0,0.1],[-2.0,0.0],[5.0,6.0]]");
}

TEST(AnswerJson, ErrorsHaveTheFormOfTheOpenAiApi) {
  EXPECT_EQ(
      error_json({ErrorCode::kInvalidArgument, "top_p: 3"}).dump(),
      R"({"error":{"message":"top_p: 3","type":"invalid_request_error","param":null,"code":400}})");
  EXPECT_EQ(error_json({ErrorCode::kInternal, "x"})["error"]["code"], 500);
}

TEST(AnswerJson, ALineIsAlwaysValidJson) {
  AnswerJson json;
  json["text"] = "a\xff\n";
  EXPECT_EQ(json_line(json), "{\"text\":\"a\xEF\xBF\xBD\\n\"}\n");
}

}  // namespace
}  // namespace warprow
