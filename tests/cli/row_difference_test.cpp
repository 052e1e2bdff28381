// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/row_difference.h"

#include <cmath>
#include <functional>
#include <string>

#include <gtest/gtest.h>

namespace warprow {
namespace {

ModelRunnerOutput output_of_one_row() {
  ModelRunnerOutput output;
  RowOutput& row = output.rows.emplace_back();
  row.kind = RowResult::kTokens;
  row.tokens = {0, 2};
  row.num_rejected = 1;
  row.prompt_logprobs = {0, 1};
  row.drafts = {0, 2};
  output.token_ids = {31, 32};
  output.draft_token_ids = {8, 9};
  output.has_logprobs = true;
  output.logprobs = {{-0.5F, 1, {0, 1}}, {-0.25F, 2, {1, 1}}};
  output.prompt_logprobs = {{-1.0F, 3, {1, 1}}};
  output.top_ids = {31, 40};
  output.top_logprobs = {-0.5F, -0.125F};
  return output;
}

std::string difference_after(const std::function<void(ModelRunnerOutput&)>& change) {
  const ModelRunnerOutput recorded = output_of_one_row();
  ModelRunnerOutput got = recorded;
  change(got);
  return row_difference(recorded, recorded.rows[0], got, got.rows[0]);
}

TEST(RowDifference, NamesWhatDiffers) {
  using Output = ModelRunnerOutput;
  EXPECT_EQ(difference_after([](Output&) {}), "");
  EXPECT_EQ(difference_after([](Output& o) { o.token_ids[1] = 33; }),
            "token 1 is 33 instead of 32");
  EXPECT_EQ(difference_after([](Output& o) { o.rows[0].tokens.count = 1; }),
            "1 tokens instead of 2");
  EXPECT_EQ(difference_after([](Output& o) { o.rows[0].num_rejected = 0; }),
            "0 rejected tokens instead of 1");
  EXPECT_EQ(difference_after([](Output& o) {
              o.rows[0].failure = RowFailure::kBadLogits;
              o.rows[0].tokens.count = 0;
            }),
            "failure: bad logits instead of none");
  EXPECT_EQ(difference_after([](Output& o) { o.draft_token_ids[0] = -1; }),
            "draft 0 is -1 instead of 8");
}

TEST(RowDifference, TheLastBitOfALogprobCounts) {
  using Output = ModelRunnerOutput;
  EXPECT_EQ(difference_after([](Output& o) {
              o.logprobs[1].logprob = std::nextafter(o.logprobs[1].logprob, 0.0F);
            }),
            "the logprobs of token 1 differ: -0.249999985 instead of -0.25");
  EXPECT_NE(difference_after([](Output& o) { o.top_logprobs[0] = -0.6F; }), "");
  EXPECT_NE(difference_after([](Output& o) { o.logprobs[0].rank = 2; }), "");
  EXPECT_EQ(difference_after([](Output& o) { o.prompt_logprobs[0].logprob = -2.0F; }),
            "the logprobs of prompt token 0 differ: -2 instead of -1");
  EXPECT_EQ(difference_after([](Output& o) { o.rows[0].prompt_logprobs = {}; }),
            "0 prompt logprobs instead of 1");
}

}  // namespace
}  // namespace warprow
