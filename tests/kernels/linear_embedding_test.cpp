// SPDX-License-Identifier: Apache-2.0
#include "kernels/embedding/embedding.h"
#include "tests/kernels/linear_fixture.h"

#include <limits>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using namespace linear_test;

TEST(EmbeddingTest, RowsAreExactForEveryKind) {
  constexpr int32_t kN = 37;
  constexpr int32_t kWidth = 256;
  constexpr int64_t kOutStride = 260;
  const std::vector<int32_t> ids = {
      0, 36, 15, 16, 31, -1, 37, 3, std::numeric_limits<int32_t>::min(), 35, 3};
  const auto num_toks = static_cast<int64_t>(ids.size());
  InlineDevice d(3);
  for (const KindCase& kind : kKindCases) {
    std::mt19937 rng(11);
    const TestWeight t = make_weight(rng, kind.shape(kN, kWidth));
    std::vector<float> out(static_cast<size_t>(num_toks * kOutStride), -5.0F);
    embedding(*d.stream,
              {make_view(ids.data(), num_toks),
               t.w,
               make_strided(out.data(), num_toks, static_cast<int64_t>(kWidth), kOutStride)});
    for (size_t tok = 0; tok < ids.size(); ++tok) {
      for (size_t i = 0; i < kOutStride; ++i) {
        const float got = out[tok * kOutStride + i];
        if (i >= kWidth) {
          ASSERT_EQ(got, -5.0F);
        } else if (ids[tok] < 0 || ids[tok] >= kN) {
          ASSERT_EQ(got, 0.0F);
        } else {
          ASSERT_EQ(got, t.values[static_cast<size_t>(ids[tok]) * kWidth + i]) << kind.name;
        }
      }
    }
  }
}

// Rows of the embedding table are scaled. Embeddings given by the caller are copied unscaled.
TEST(EmbeddingTest, ScaledAndGivenRows) {
  constexpr int32_t kWidth = 32;
  InlineDevice d(1);
  std::mt19937 rng(12);
  const TestWeight t = make_weight(rng, kKindCases[0].shape(8, kWidth));
  const std::vector<int32_t> ids = {3, -1, 7};
  std::vector<float> given(ids.size() * kWidth);
  for (size_t i = 0; i < given.size(); ++i) {
    given[i] = static_cast<float>(i) + 0.25F;
  }
  std::vector<float> out(given.size());
  EmbeddingArgs args{
      make_view(ids.data(), 3), t.w, make_view(out.data(), 3, static_cast<int64_t>(kWidth))};
  args.given = make_view<const float>(given.data(), 3, kWidth);
  args.scale = 2.0F;
  embedding(*d.stream, args);
  for (size_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(out[i], 2.0F * t.values[3 * kWidth + i]);
    EXPECT_EQ(out[kWidth + i], given[kWidth + i]);
    EXPECT_EQ(out[2 * kWidth + i], 2.0F * t.values[7 * kWidth + i]);
  }
}

// Ranks that have parts of a table: the sum of their rows is the whole table's, bit for bit.
TEST(EmbeddingTest, PartsOfATableAddUp) {
  constexpr int32_t kWidth = 32;
  InlineDevice d(1);
  std::mt19937 rng(13);
  const TestWeight t = make_weight(rng, kKindCases[0].shape(8, kWidth));
  const std::vector<int32_t> ids = {10, 17, -1, 9, 18, std::numeric_limits<int32_t>::min()};
  const std::vector<float> given(ids.size() * kWidth, 3.0F);
  std::vector<float> out(ids.size() * kWidth, -5.0F);
  const auto n = static_cast<int64_t>(ids.size());
  EmbeddingArgs args{
      make_view(ids.data(), n), t.w, make_view(out.data(), n, static_cast<int64_t>(kWidth))};
  args.given = make_view<const float>(given.data(), n, kWidth);
  args.first_id = 10;
  embedding(*d.stream, args);
  for (size_t i = 0; i < kWidth; ++i) {
    EXPECT_EQ(out[i], t.values[i]);
    EXPECT_EQ(out[kWidth + i], t.values[7 * kWidth + i]);
    EXPECT_EQ(out[2 * kWidth + i], 3.0F) << "no id";
    EXPECT_EQ(out[3 * kWidth + i], 0.0F) << "another part's id";
    EXPECT_EQ(out[4 * kWidth + i], 0.0F) << "another part's id";
    EXPECT_EQ(out[5 * kWidth + i], 3.0F) << "no id";
  }
}

}  // namespace
}  // namespace warprow
