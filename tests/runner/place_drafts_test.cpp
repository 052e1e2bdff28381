// SPDX-License-Identifier: Apache-2.0
#include "runner/ops/place_drafts.h"

#include <array>
#include <cstdint>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int32_t kNone = -1;
constexpr int32_t kStale = -7;

// Row 5 verifies two drafts of three, row 1 ends its prompt, row 2 has a chunk of one, row 0 verifies three. Padding follows.
TEST(PlaceDrafts, ByLogitOfTheStep) {
  std::array<RowState, 6> rows;
  rows[5].total_len = 11;
  rows[1].total_len = 4;
  rows[2].total_len = 90;
  rows[0].total_len = 3;
  const std::vector<int32_t> idx_mapping = {5, 1, 2, 0, -1};
  const std::vector<int32_t> cu_num_logits = {0, 3, 4, 4, 8, 8};
  const std::vector<int32_t> logit_pos = {10, 11, 12, 3, 2, 3, 4, 5, 0};
  std::vector<int32_t> draft_at(9, kStale);
  const PlaceDrafts op{{idx_mapping.data(), nullptr, cu_num_logits.data(), rows.data()},
                       logit_pos.data(),
                       3,
                       draft_at.data()};
  for (int64_t b = 0; b < 5; ++b) {
    op(b);
  }
  EXPECT_EQ(draft_at, (std::vector<int32_t>{15, 16, kNone, kNone, 0, 1, 2, kNone, kStale}));
}

}  // namespace
}  // namespace warprow
