// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/embedding.h"
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

}  // namespace
}  // namespace warprow
