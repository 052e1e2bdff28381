// SPDX-License-Identifier: Apache-2.0
#include "cli/bench/draft_counters.h"

#include <gtest/gtest.h>

namespace warprow {
namespace {

TEST(DraftCounters, OfAllEnginesOfAPage) {
  const auto counters = read_draft_counters(
      "# TYPE vllm:spec_decode_num_drafts_total counter\n"
      "vllm:spec_decode_num_drafts_total{engine=\"0\"} 10.0\n"
      "vllm:spec_decode_num_drafts_total{engine=\"1\"} 5\n"
      "vllm:spec_decode_num_drafts_created{engine=\"0\"} 1.7e9\n"
      "vllm:spec_decode_num_draft_tokens_total{engine=\"0\"} 45\n"
      "vllm:spec_decode_num_accepted_tokens_total{engine=\"0\"} 1.5e1\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"0\"} 9\n"
      "vllm:spec_decode_num_accepted_tokens_per_pos_total{engine=\"0\",position=\"1\"} 6\n"
      "vllm:num_requests_running 3\n");
  ASSERT_TRUE(counters);
  EXPECT_EQ(*counters, (DraftCounters{15, 45, 15, {9, 6}}));
  EXPECT_FALSE(read_draft_counters("vllm:num_requests_running 3\n"));
  EXPECT_FALSE(read_draft_counters(""));
}

TEST(DraftCounters, ARunIsTheDifference) {
  const AnswerJson json = draft_report({10, 30, 9, {7, 2}}, {30, 90, 39, {22, 12, 5}});
  EXPECT_DOUBLE_EQ(json["spec_decode_acceptance_rate"].get<double>(), 50);
  EXPECT_DOUBLE_EQ(json["spec_decode_acceptance_length"].get<double>(), 2.5);
  EXPECT_EQ(json["spec_decode_num_drafts"], 20);
  EXPECT_EQ(json["spec_decode_per_position_acceptance_rates"].dump(), "[0.75,0.5,0.25]");
  EXPECT_EQ(
      draft_report_text(json),
      "30 of 60 draft tokens accepted (50.0 %), 2.50 tokens a run; by place 0.75 0.50 0.25\n");
  EXPECT_TRUE(draft_report({5, 5, 5, {5}}, {5, 5, 5, {5}}).is_null());
  EXPECT_EQ(draft_report_text(AnswerJson::object()), "");
}

}  // namespace
}  // namespace warprow
