// SPDX-License-Identifier: Apache-2.0
#include "runner/input_batch.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

std::string order_of(const std::vector<int32_t>& tokens, int32_t decode_len) {
  std::vector<ScheduledRow> rows;
  for (size_t i = 0; i < tokens.size(); ++i) {
    rows.push_back({RowId{static_cast<int32_t>(i)}, tokens[i], 0, 0});
  }
  InputBatch batch;
  batch.order(rows, decode_len);
  std::string names;
  for (const ScheduledRow& row : batch.rows) {
    names += static_cast<char>('a' + index_of(row.row));
  }
  return names;
}

int32_t uniform(const std::vector<int32_t>& tokens) {
  std::vector<ScheduledRow> rows;
  for (const int32_t n : tokens) {
    rows.push_back({RowId{0}, n, 0, 0});
  }
  return uniform_query_len(rows);
}

TEST(InputBatch, DecodesThenShortThenLong) {
  EXPECT_EQ(order_of({1, 7, 1, 3}, 1), "acdb");
  EXPECT_EQ(order_of({1, 3, 40}, 3), "bac");
}

TEST(InputBatch, DecodeRowsHaveAtMostDecodeLenTokens) {
  const std::vector<ScheduledRow> rows = {
      {RowId{0}, 1, 0, 0}, {RowId{1}, 40, 100, 0}, {RowId{2}, 3, 500, 0}, {RowId{3}, 2, 0, 0}};
  InputBatch batch;
  batch.order(rows, 3);
  EXPECT_EQ(batch.num_decode_rows, 3);
  EXPECT_EQ(batch.num_decode_toks, 6);
  EXPECT_EQ(batch.most_prompt_keys, 140);
  batch.order(rows, 1);
  EXPECT_EQ(batch.num_decode_rows, 1);
  EXPECT_EQ(batch.num_decode_toks, 1);
  EXPECT_EQ(batch.most_prompt_keys, 503);
}

TEST(InputBatch, UniformQueryLen) {
  EXPECT_EQ(uniform({3, 3, 3}), 3);
  EXPECT_EQ(uniform({3, 3, 2}), 0);
  EXPECT_EQ(uniform({2, 4}), 0);
  EXPECT_EQ(uniform({}), 0);
}

}  // namespace
}  // namespace warprow
