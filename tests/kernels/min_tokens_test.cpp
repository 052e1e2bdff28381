// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/rules/min_tokens.h"

#include "tests/kernels/token_rows.h"

#include <limits>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::draw;
using testing::TokenRows;

// Request i has a prompt of 5 tokens and i outputs. The prefill holds all outputs, as after a preemption, or none. EOS
// (7) and a stop id (2) have the highest logits.
TEST(MinTokens, EndsOnlyBehindTheLeastLength) {
  for (const bool resumed : {false, true}) {
    for (const float temperature : {0.0F, 1.0F}) {
      TokenRows rows(4);
      std::vector<float> logits;
      for (int32_t i = 0; i < 4; ++i) {
        const std::vector<int32_t> tokens(static_cast<size_t>(5 + i), 1);
        rows.add(tokens, 5, resumed ? 5 + i : 5);
        const float x[] = {0, 0, 200, 0, 0, 100, 0, 300};
        logits.insert(logits.end(), std::begin(x), std::end(x));
      }
      SampleParams p;
      p.temperature = temperature;
      p.min_tokens = 2;
      std::vector<SampleParams> params(4, p);
      params[3].min_tokens = 4;
      const int32_t stop_ids[4][4] = {{3, 7, 2, 7}, {2, 2, 7, 5}, {2, 7, 2, -1}, {0, 7, 2, 5}};
      const auto drawn =
          draw(rows.view(), params, rows.len, logits, 1, make_view(&stop_ids[0][0], 4, 4));
      EXPECT_EQ(drawn.tokens, (std::vector<int32_t>{5, 5, 7, 7})) << "row 3 has no stop ids";
    }
  }
}

TEST(MinTokens, NothingButStopIdsFails) {
  TokenRows rows(1);
  rows.add({0}, 1, 1);
  SampleParams p;
  p.min_tokens = 1;
  const int32_t stop_ids[] = {2, 0, 1};
  const auto drawn = draw(rows.view(), {p}, rows.len, {1.0F, 2.0F}, 1, make_view(stop_ids, 1, 3));
  EXPECT_EQ(drawn.tokens[0], -2);
  EXPECT_EQ(drawn.errors[0], static_cast<int32_t>(SampleError::kNothingLeft));
}

TEST(MinTokens, IdsOutsideTheVocabularyAreSkipped) {
  const int32_t stop_ids[] = {3, -1, 2, 1};
  float logits[] = {1.0F, 2.0F};
  mask_stop_ids(stop_ids, logits, 2);
  EXPECT_EQ(logits[0], 1.0F);
  EXPECT_EQ(logits[1], -std::numeric_limits<float>::infinity());
}

}  // namespace
}  // namespace warprow
