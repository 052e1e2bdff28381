// SPDX-License-Identifier: Apache-2.0
// Text through the whole engine, in particular stop strings.
#include "engine/output_loop.h"

#include "tests/engine/toy_engine.h"
#include "text/text_model.h"

#include <random>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::Client;
using testing::FakeModel;
using testing::greedy_request;
using testing::make_toy_engine;
using testing::Told;
using testing::toy_answer;
using testing::ToyAnswer;

struct TextAnswer {
  std::string text;
  size_t num_tokens = 0;
  std::string stopped_by;  // empty: not by a stop string
};

// The text of an answer, built byte by byte and cut at the first complete stop string.
TextAnswer text_answer(const ToyAnswer& answer,
                       const RequestFields& fields,
                       const Tokenizer& tokenizer) {
  TextAnswer result;
  Detokenizer detokenizer(tokenizer,
                          {.skip_special = fields.skip_special_tokens, .continues = true});
  const auto add = [&](const std::string& piece) {
    for (const char c : piece) {
      result.text += c;
      for (const std::string& stop : fields.stop) {
        if (result.text.ends_with(stop)) {
          result.stopped_by = stop;
          result.text.resize(result.text.size() -
                             (fields.include_stop_str_in_output ? 0 : stop.size()));
          return true;
        }
      }
    }
    return false;
  };
  for (const TokenId token : answer.token_ids) {
    ++result.num_tokens;
    const bool is_end =
        result.num_tokens == answer.token_ids.size() && answer.reason == FinishReason::kStop;
    const bool shown = !is_end || fields.include_stop_str_in_output;
    if (shown && add(detokenizer.push(token))) {
      return result;
    }
  }
  add(detokenizer.flush());
  return result;
}

TEST(OutputLoop, StopStringsCutTextAndTokens) {
  constexpr size_t kRequests = 80;
  std::mt19937 random(3);
  const auto letter = [&] { return static_cast<char>('a' + random() % 26); };
  Client client;
  const std::unique_ptr<Engine> engine = make_toy_engine({}, {});
  std::vector<RequestFields> fields;
  for (size_t i = 0; i < kRequests; ++i) {
    GenerationRequest request = greedy_request(
        {static_cast<TokenId>(2 + random() % 60), static_cast<TokenId>(2 + random() % 60)}, 60);
    request.sampling.stop = {{letter()}, {letter(), letter()}, "st", " s", "\n"};
    request.sampling.include_stop_str_in_output = random() % 2 == 0;
    request.sampling.skip_special_tokens = random() % 2 == 0;
    request.sampling.ignore_eos = random() % 2 == 0;
    ValidRequest valid = value_or_throw(engine->validate(request));
    fields.push_back(valid.fields());
    client.submit(*engine, std::move(valid));
  }
  size_t num_stopped = 0;
  for (size_t i = 0; i < kRequests; ++i) {
    SCOPED_TRACE(i);
    const Told& told = client.wait(i);
    const ToyAnswer answer = toy_answer(fields[i]);
    const TextAnswer expected = text_answer(answer, fields[i], engine->text().tokenizer);
    EXPECT_EQ(told.text, expected.text);
    ASSERT_EQ(told.token_ids.size(), expected.num_tokens);
    EXPECT_TRUE(std::equal(told.token_ids.begin(), told.token_ids.end(), answer.token_ids.begin()));
    EXPECT_EQ(told.last.num_output_tokens, expected.num_tokens);
    EXPECT_EQ(told.num_final, 1);
    if (expected.stopped_by.empty()) {
      EXPECT_EQ(told.last.finish_reason, answer.reason);
      continue;
    }
    ++num_stopped;
    EXPECT_EQ(told.last.finish_reason, FinishReason::kStop);
    ASSERT_TRUE(std::holds_alternative<std::string>(told.last.stop_reason));
    EXPECT_EQ(std::get<std::string>(told.last.stop_reason), expected.stopped_by);
  }
  EXPECT_GT(num_stopped, kRequests / 4);
}

// The engine learns of the stop and gives the row to the next request.
TEST(OutputLoop, StopStringEndsTheRequestInTheEngine) {
  Client client;
  FakeModel model;
  model.max_num_seqs = 1;
  model.step_time = std::chrono::milliseconds(10);
  const std::unique_ptr<Engine> engine = make_toy_engine({}, model);
  GenerationRequest request = greedy_request({9, 3, 4}, 100);
  request.sampling.ignore_eos = true;
  const ToyAnswer answer = toy_answer(value_or_throw(engine->validate(request)).fields());
  request.sampling.stop = {testing::toy_token_bytes(answer.token_ids[1])};
  client.submit(*engine, request);
  client.submit(*engine, greedy_request({10, 3, 4}, 1));
  EXPECT_EQ(client.wait(0).last.finish_reason, FinishReason::kStop);
  EXPECT_EQ(client.wait(1).token_ids.size(), 1U);
  EXPECT_LT(engine->stats().output_tokens, 50);
}

}  // namespace
}  // namespace warprow
