// SPDX-License-Identifier: Apache-2.0
#include "server/response/update_box.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

RequestUpdate boxed_update(const char* text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate out;
  out.text = text;
  out.token_ids = {static_cast<TokenId>(text[0])};
  out.finish_reason = reason;
  return out;
}

TEST(UpdateBox, JoinsWhatIsNotTakenAndWakesOnce) {
  int num_wakes = 0;
  UpdateBox box(2, true, [&] { ++num_wakes; });
  EXPECT_TRUE(box.take().empty());
  box.push(1, boxed_update("a"));
  box.push(1, boxed_update("b", FinishReason::kStop));
  box.push(0, boxed_update("c"));
  EXPECT_EQ(num_wakes, 1);
  const auto news = box.take();
  ASSERT_EQ(news.size(), 2U);
  EXPECT_EQ(news[0].first, 0U);
  EXPECT_EQ(news[0].second.text, "c");
  EXPECT_EQ(news[1].second.text, "ab");
  EXPECT_EQ(news[1].second.token_ids, (std::vector<TokenId>{'a', 'b'}));
  EXPECT_EQ(news[1].second.finish_reason, FinishReason::kStop);
  EXPECT_TRUE(box.take().empty());
  box.push(0, boxed_update("d"));
  EXPECT_EQ(num_wakes, 2);
  EXPECT_EQ(box.take()[0].second.text, "d");
}

TEST(UpdateBox, KeepsWhatCameWithTheFirstToken) {
  UpdateBox box(1, true, [] {});
  RequestUpdate first = boxed_update("a");
  first.prompt_logprobs = {{.token_id = 7, .logprob = -1.0F, .rank = 1, .top = {}}};
  first.hidden_states = {1.0F};
  box.push(0, first);
  RequestUpdate second = boxed_update("b");
  second.hidden_states = {2.0F};
  box.push(0, second);
  const RequestUpdate joined = box.take()[0].second;
  ASSERT_EQ(joined.prompt_logprobs.size(), 1U);
  EXPECT_EQ(joined.prompt_logprobs[0].token_id, 7);
  EXPECT_EQ(joined.hidden_states, (std::vector<float>{1.0F, 2.0F}));
}

TEST(UpdateBox, ForAWholeAnswerItWakesAtTheEnd) {
  int num_wakes = 0;
  UpdateBox box(2, false, [&] { ++num_wakes; });
  box.push(0, boxed_update("a", FinishReason::kStop));
  box.push(1, boxed_update("b"));
  EXPECT_EQ(num_wakes, 0);
  box.push(1, boxed_update("c", FinishReason::kLength));
  EXPECT_EQ(num_wakes, 1);
}

TEST(UpdateBox, AClosedBoxWakesNobody) {
  int num_wakes = 0;
  UpdateBox box(1, true, [&] { ++num_wakes; });
  box.close();
  box.push(0, boxed_update("a"));
  EXPECT_EQ(num_wakes, 0);
}

}  // namespace
}  // namespace warprow
