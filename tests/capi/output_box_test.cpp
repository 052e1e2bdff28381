// SPDX-License-Identifier: Apache-2.0
#include "capi/output_box.h"

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

SharedPrompt prompt() { return std::make_shared<const std::vector<TokenId>>(3, 7); }

RequestUpdate update(const std::string& text, FinishReason reason = FinishReason::kNone) {
  RequestUpdate made;
  made.text = text;
  made.token_ids = {1};
  made.finish_reason = reason;
  return made;
}

std::string text_of(OutputData& output) { return output.view()->text; }

TEST(OutputBox, JoinsWhatWasNotTaken) {
  OutputBox box;
  const uint64_t request = box.open(prompt(), 1, true);
  box.push(request, 0, update("a"));
  box.push(request, 0, update("b"));
  auto [status, output] = box.wait(0);
  ASSERT_EQ(status, WARPROW_OK);
  EXPECT_EQ(text_of(*output), "ab");
  EXPECT_EQ(output->view()->num_token_ids, 2U);
  EXPECT_EQ(output->view()->num_prompt_token_ids, 3U);
  EXPECT_FALSE(output->view()->is_last);
  EXPECT_EQ(box.wait(0).first, WARPROW_TIMEOUT);
  box.push(request, 0, update("c", FinishReason::kStop));
  output = box.wait(0).second;
  EXPECT_EQ(text_of(*output), "c");
  EXPECT_TRUE(output->view()->is_last);
  EXPECT_EQ(box.wait(-1).first, WARPROW_DONE);
}

TEST(OutputBox, WithoutEachUpdateAChoiceComesAtItsEnd) {
  OutputBox box;
  const uint64_t request = box.open(prompt(), 2, false);
  box.push(request, 1, update("x"));
  EXPECT_EQ(box.wait(0).first, WARPROW_TIMEOUT);
  box.push(request, 1, update("y", FinishReason::kLength));
  const auto first = box.wait(0).second;
  EXPECT_EQ(text_of(*first), "xy");
  EXPECT_EQ(first->view()->choice, 1);
  EXPECT_EQ(first->view()->num_choices, 2);
  EXPECT_FALSE(first->view()->is_last);
  box.push(request, 0, update("z", FinishReason::kStop));
  EXPECT_TRUE(box.wait(0).second->view()->is_last);
}

TEST(OutputBox, NamesTheChoicesThatRun) {
  OutputBox box;
  const uint64_t first = box.open(prompt(), 2, true);
  const uint64_t second = box.open(prompt(), 1, true);
  EXPECT_TRUE(box.name_choices(first, {10, 11}));
  EXPECT_TRUE(box.name_choices(second, {12}));
  box.push(first, 0, update("", FinishReason::kStop));
  EXPECT_EQ(box.running(first), std::vector<RequestId>{11});
  EXPECT_EQ(box.running().size(), 2U);
  EXPECT_TRUE(box.running(99).empty());
}

TEST(OutputBox, CloseEndsWaits) {
  OutputBox box;
  const uint64_t request = box.open(prompt(), 1, true);
  warprow_status status = WARPROW_OK;
  std::thread waiter([&] { status = box.wait(-1).first; });
  box.close();
  waiter.join();
  EXPECT_EQ(status, WARPROW_CLOSED);
  EXPECT_FALSE(box.name_choices(request, {1}));
  box.push(request, 0, update("late"));
  EXPECT_EQ(box.wait(0).first, WARPROW_CLOSED);
}

TEST(OutputBox, TheLastOutputEndsOtherWaits) {
  OutputBox box;
  const uint64_t request = box.open(prompt(), 1, true);
  std::vector<warprow_status> seen(2);
  std::vector<std::thread> waiters;
  for (warprow_status& status : seen) {
    waiters.emplace_back([&box, &status] { status = box.wait(-1).first; });
  }
  box.push(request, 0, update("", FinishReason::kStop));
  for (std::thread& waiter : waiters) {
    waiter.join();
  }
  EXPECT_EQ(std::pair(std::min(seen[0], seen[1]), std::max(seen[0], seen[1])),
            std::pair(warprow_status{WARPROW_OK}, warprow_status{WARPROW_DONE}));
}

TEST(OutputData, LogprobsAreListsOfLists) {
  RequestUpdate made = update("ab", FinishReason::kStop);
  made.logprobs = {{.token_id = 5, .logprob = -0.5F, .rank = 2, .top = {{6, -0.1F}, {5, -0.5F}}},
                   {.token_id = 7, .logprob = -1.0F, .rank = 1, .top = {}}};
  made.stop_reason = std::string("b");
  OutputData output({.request = 3}, std::move(made), prompt());
  const warprow_logprobs& lists = output.view()->logprobs;
  ASSERT_EQ(lists.num_tokens, 2U);
  EXPECT_EQ(lists.begins[1], 3U);
  EXPECT_EQ(lists.begins[2], 4U);
  EXPECT_EQ(lists.entries[0].rank, 2);
  EXPECT_EQ(lists.entries[1].token_id, 6);
  EXPECT_EQ(lists.entries[2].rank, 2);
  EXPECT_EQ(lists.entries[3].token_id, 7);
  EXPECT_STREQ(output.view()->stop_string, "b");
  EXPECT_EQ(output.view()->stop_token_id, -1);
}

TEST(OutputData, FailuresHaveAText) {
  RequestUpdate made = update("", FinishReason::kError);
  made.error = "no";
  made.error_is_clients = true;
  OutputData output({}, std::move(made), prompt());
  EXPECT_STREQ(output.view()->error, "no");
  EXPECT_EQ(output.view()->error_status, WARPROW_INVALID_ARGUMENT);
}

}  // namespace
}  // namespace warprow
