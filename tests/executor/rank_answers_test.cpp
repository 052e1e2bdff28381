// SPDX-License-Identifier: Apache-2.0
#include "executor/rank_answers.h"

#include "base/error.h"
#include "executor/rank_operations.h"

#include <future>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// An operation that answers with a number.
struct Count {
  using Answer = int;
  static int decode(const std::string& answer) { return std::stoi(answer); }
};

TEST(RankAnswers, ComeByRankWhenAllAreThere) {
  std::promise<std::vector<std::string>> replies;
  RankAnswers<Count> answers(replies.get_future());
  EXPECT_FALSE(answers.ready());
  const std::jthread ranks([&replies] { replies.set_value({"3", "5"}); });
  EXPECT_EQ(answers.get(), (std::vector<int>{3, 5}));
}

TEST(RankAnswers, AFailureOfARankIsTheCallers) {
  std::promise<std::vector<std::string>> replies;
  RankAnswers<WakeRanks> answers(replies.get_future());
  replies.set_exception(
      std::make_exception_ptr(StartupError(ErrorCode::kOutOfMemory, "rank 1 has no memory")));
  EXPECT_TRUE(answers.ready());
  EXPECT_THROW(answers.get(), StartupError);
}

TEST(RankAnswers, AnExecutorThatEndsFirstLeavesAnError) {
  auto replies = std::make_unique<std::promise<std::vector<std::string>>>();
  RankAnswers<Count> answers(replies->get_future());
  replies.reset();
  EXPECT_THROW(answers.get(), std::future_error);
}

TEST(RankOperations, ArgumentsAsRanksReadThem) {
  EXPECT_EQ(SleepRanks{2}.encode(), "2");
  EXPECT_EQ(WakeRanks{"weights,kv_cache"}.encode(), "weights,kv_cache");
  EXPECT_EQ(ReadMemoryPlan{}.encode(), "");
  EXPECT_EQ(ReadMemoryPlan{.as_text = true}.encode(), "text");
  EXPECT_EQ(TimeSteps{128}.encode(), "128");
  EXPECT_EQ(StateChecksum{}.encode(), "");
}

}  // namespace
}  // namespace warprow
