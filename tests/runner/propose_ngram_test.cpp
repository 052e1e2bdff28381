// SPDX-License-Identifier: Apache-2.0
#include "runner/ops/propose_ngram.h"

#include "tests/runner/paged_text.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using Ints = std::vector<int32_t>;

constexpr int32_t kPageShift = 2;
constexpr int32_t kPageSize = 1 << kPageShift;
constexpr int32_t kMaxPages = 20;

struct Case {
  Ints tokens;
  int32_t prefill_len = 0;
  int32_t num_drafts = 4;
  int32_t min_n = 1;
  int32_t max_n = 3;
  int32_t num_sampled = 1;
};

// A lane alone.
struct OneLane {
  template <typename F>
  void for_each(int64_t n, F f) const {
    for (int64_t i = 0; i < n; ++i) {
      f(i);
    }
  }
  template <typename F>
  int64_t max_of(int64_t n, int64_t /*enough*/, F f) const {
    int64_t best = 0;
    for (int64_t i = 0; i < n; ++i) {
      best = std::max(best, f(i));
    }
    return best;
  }
};

// The drafts of one row. The prompt is in host memory only until the first proposal, and on the device only after it.
Ints propose(const Case& c) {
  const auto len = static_cast<int32_t>(c.tokens.size());
  const bool is_first = len - c.num_sampled == c.prefill_len;
  const test::PagedText text(c.tokens, is_first ? c.prefill_len : 0, kPageShift);
  RowState state;
  state.prefill_len = c.prefill_len;
  state.total_len = len;
  const Ints idx_mapping{0, -1};
  const Ints num_sampled{c.num_sampled, 1};
  Ints drafts(static_cast<size_t>(c.num_drafts), -9);
  ProposeNgram op;
  op.step.idx_mapping = idx_mapping.data();
  op.step.rows = &state;
  op.num_sampled = num_sampled.data();
  op.known = text.known;
  op.drafts = {drafts.data(), c.num_drafts};
  op.min_n = c.min_n;
  op.max_n = c.max_n;
  op(0, OneLane());
  op(1, OneLane());  // a padding row
  if (is_first && c.num_sampled > 0) {
    for (int32_t i = 0; i < len; ++i) {
      EXPECT_EQ(text.later[static_cast<size_t>(text.known.cell(0, i))],
                c.tokens[static_cast<size_t>(i)]);
    }
  }
  return drafts;
}

TEST(ProposeNgram, TheLongestOccurrenceCounts) {
  // "1 2 3" is followed by 4; the later "9 3" by 8.
  EXPECT_EQ(propose({.tokens = {1, 2, 3, 4, 5, 6, 9, 3, 8, 1, 2, 3}, .prefill_len = 9}),
            (Ints{4, 5, 6, 9}));
}

TEST(ProposeNgram, OfEqualOnesTheLatest) {
  EXPECT_EQ(propose({.tokens = {1, 2, 4, 1, 2, 5, 1, 2}, .prefill_len = 8, .max_n = 2}),
            (Ints{5, 1, 2, 5}));
}

TEST(ProposeNgram, MoreThanTheLargestLengthCountsAsThat) {
  // Three tokens in common at both places, though the first would have four.
  EXPECT_EQ(propose({.tokens = {1, 2, 3, 4, 7, 9, 2, 3, 4, 8, 1, 2, 3, 4},
                     .prefill_len = 3,
                     .num_drafts = 1}),
            (Ints{8}));
}

TEST(ProposeNgram, ShorterThanTheLeastIsNone) {
  EXPECT_EQ(propose({.tokens = {1, 2, 9, 1, 2}, .prefill_len = 5, .min_n = 3}), Ints(4, -1));
  EXPECT_EQ(propose({.tokens = {1, 2, 9, 1, 2}, .prefill_len = 5, .min_n = 2}), (Ints{9, 1, 2, 9}));
  EXPECT_EQ(propose({.tokens = {1, 2, 3}, .prefill_len = 2}), Ints(4, -1));
  EXPECT_EQ(propose({.tokens = {1}, .prefill_len = 0}), Ints(4, -1));
}

TEST(ProposeNgram, DraftsGoOnPastTheEnd) {
  EXPECT_EQ(propose({.tokens = {3, 8, 8}, .prefill_len = 2, .num_drafts = 7}), Ints(7, 8));
  EXPECT_EQ(propose({.tokens = {1, 2, 1, 2}, .prefill_len = 2, .num_drafts = 5}),
            (Ints{1, 2, 1, 2, 1}));
}

TEST(ProposeNgram, ARowWithoutATokenKeepsItsDrafts) {
  EXPECT_EQ(propose({.tokens = {8, 8, 8}, .prefill_len = 2, .num_sampled = 0}), Ints(4, -9));
}

// vllm#52873: drafts end for good once a row is that long.
TEST(ProposeNgram, ARowPast32768Tokens) {
  for (const int32_t len : {32'766, 32'770, 65'540}) {
    Ints tokens(static_cast<size_t>(len));
    std::iota(tokens.begin(), tokens.end(), 0);
    tokens.insert(tokens.end(), {len - 9, len - 8, len - 7});
    EXPECT_EQ(propose({.tokens = tokens, .prefill_len = len / 2}),
              (Ints{len - 6, len - 5, len - 4, len - 3}));
  }
}

// The definition, read literally.
Ints expected(const Case& c) {
  const auto len = static_cast<int32_t>(c.tokens.size());
  const auto token = [&](int32_t i) { return c.tokens[static_cast<size_t>(i)]; };
  for (int32_t n = c.max_n; n >= c.min_n; --n) {
    for (int32_t end = len - 1; end >= n; --end) {
      bool equal = true;
      for (int32_t i = 1; i <= n; ++i) {
        equal = equal && token(end - i) == token(len - i);
      }
      if (equal) {
        Ints all = c.tokens;
        for (int32_t i = 0; i < c.num_drafts; ++i) {
          all.push_back(all[static_cast<size_t>(end + i)]);
        }
        return {all.begin() + len, all.end()};
      }
    }
  }
  return Ints(static_cast<size_t>(c.num_drafts), -1);
}

TEST(ProposeNgram, AgreesWithTheDefinition) {
  std::mt19937 random(3);
  const auto below = [&](uint32_t n) { return static_cast<int32_t>(random() % n); };
  int32_t num_found = 0;
  for (int32_t i = 0; i < 3000; ++i) {
    Case c;
    c.tokens.resize(static_cast<size_t>(1 + below(kMaxPages * kPageSize)));
    const auto vocab = static_cast<uint32_t>(2 + below(12));
    for (int32_t& token : c.tokens) {
      token = below(vocab);
    }
    c.prefill_len = below(static_cast<uint32_t>(c.tokens.size()) + 1);
    c.num_drafts = 1 + below(7);
    c.min_n = 1 + below(5);
    c.max_n = c.min_n + below(4);
    const Ints drafts = propose(c);
    ASSERT_EQ(drafts, expected(c)) << "case " << i;
    num_found += drafts[0] >= 0 ? 1 : 0;
  }
  EXPECT_GT(num_found, 500);
  EXPECT_LT(num_found, 2900);
}

}  // namespace
}  // namespace warprow
