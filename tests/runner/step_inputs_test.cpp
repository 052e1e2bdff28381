// SPDX-License-Identifier: Apache-2.0
#include "runner/step_inputs.h"

#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

constexpr int32_t kMaxSeqs = 4;
using Ints = std::vector<int32_t>;

// One entry of the upload ring, reused by step after step.
struct RingEntry {
  Ints idx_mapping = Ints(kMaxSeqs, -7);
  Ints query_start_loc = Ints(kMaxSeqs + 1, -7);
  Ints cu_num_logits = Ints(kMaxSeqs + 1, -7);
  StepUpload::Tails tails;

  // {row, number of tokens} of each row, with num_logits logits each.
  void write(const std::vector<std::pair<int32_t, int32_t>>& rows, int32_t num_logits = 1) {
    InputBatch batch;
    for (const auto& [row, num_tokens] : rows) {
      batch.rows.push_back({.row = RowId{row}, .num_tokens = num_tokens, .num_logits = num_logits});
      batch.num_toks += num_tokens;
      batch.num_logits += num_logits;
    }
    batch.num_rows = static_cast<int32_t>(rows.size());
    StepUpload::Entry entry;
    entry.idx_mapping = idx_mapping.data();
    entry.query_start_loc = query_start_loc.data();
    entry.cu_num_logits = cu_num_logits.data();
    entry.tails = &tails;
    write_layout(batch, kMaxSeqs, entry);
  }
};

TEST(WriteLayout, TailsFollowTheCountsWhoeverUsedTheEntryBefore) {
  RingEntry entry;
  entry.write({{2, 1}, {0, 5}});
  EXPECT_EQ(entry.idx_mapping, (Ints{2, 0, -1, -1}));
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 1, 6, 6, 6}));
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 1, 2, 2, 2}));
  entry.write({{3, 2}, {1, 4}});  // the same counts
  EXPECT_EQ(entry.idx_mapping, (Ints{3, 1, -1, -1}));
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 2, 6, 6, 6}));
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 1, 2, 2, 2}));
  entry.write({{3, 2}, {1, 1}});  // fewer tokens
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 2, 3, 3, 3}));
  entry.write({{1, 3}});  // fewer rows
  EXPECT_EQ(entry.idx_mapping, (Ints{1, -1, -1, -1}));
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 3, 3, 3, 3}));
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 1, 1, 1, 1}));
  entry.write({{0, 1}, {1, 1}, {2, 1}, {3, 1}});  // no tail
  EXPECT_EQ(entry.idx_mapping, (Ints{0, 1, 2, 3}));
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 1, 2, 3, 4}));
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 1, 2, 3, 4}));
  entry.write({});
  EXPECT_EQ(entry.idx_mapping, (Ints{-1, -1, -1, -1}));
  EXPECT_EQ(entry.query_start_loc, (Ints{0, 0, 0, 0, 0}));
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 0, 0, 0, 0}));
}

TEST(WriteLayout, TailsFollowTheLogitsToo) {
  RingEntry entry;
  entry.write({{0, 3}, {1, 3}}, 3);
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 3, 6, 6, 6}));
  entry.write({{0, 3}, {1, 3}}, 1);  // the same rows and tokens
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 1, 2, 2, 2}));
  entry.write({{0, 3}, {1, 3}}, 0);
  EXPECT_EQ(entry.cu_num_logits, (Ints{0, 0, 0, 0, 0}));
}

}  // namespace
}  // namespace warprow
