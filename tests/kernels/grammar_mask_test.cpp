// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/grammar_mask.h"

#include "tests/kernels/cpu_harness.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

// Masks of a step, in the second of two ring entries. Words are random, all ones or all zeros.
struct Masks {
  Masks(int64_t rows, int64_t v, uint32_t seed)
      : max_rows(rows),
        vocab(v),
        ring(static_cast<size_t>(2 * mask_entry_words(rows, v)), -99),
        rng(seed) {
    std::fill_n(list(), rows, kNoMask);
  }
  int32_t* list() { return ring.data() + mask_entry_words(max_rows, vocab); }
  uint32_t* mask(int64_t i) {
    return reinterpret_cast<uint32_t*>(list() + max_rows) + i * mask_words(vocab);
  }
  void fill(int64_t i) {
    for (int64_t w = 0; w < mask_words(vocab); ++w) {
      const uint32_t kind = rng() % 3;
      mask(i)[w] = kind == 0 ? 0 : kind == 1 ? ~0U : static_cast<uint32_t>(rng());
    }
  }
  [[nodiscard]] bool allows(int64_t i, int64_t token) {
    return (mask(i)[token / 32] >> (token % 32) & 1U) != 0;
  }

  int64_t max_rows;
  int64_t vocab;
  std::vector<int32_t> ring;
  std::mt19937 rng;
};

TEST(GrammarMask, EachRowGetsItsOwnMaskOrNone) {
  testing::CpuHarness cpu;
  for (const int64_t vocab : {1, 31, 32, 33, 64, 1000}) {
    Masks masks(6, vocab, 5);
    masks.fill(0);
    masks.fill(1);
    const int32_t list[] = {1, kNoMask, 0, kWithheldRow};
    std::copy(std::begin(list), std::end(list), masks.list());
    const int64_t stride = vocab + 3;
    const std::vector<float> before = testing::random_floats(static_cast<size_t>(4 * stride), 6);
    std::vector<float> logits = before;
    std::vector<int32_t> logit_row{7, 8, 9, 10};
    const int32_t entry = 1;
    grammar_mask(*cpu.stream,
                 {make_strided(logits.data(), 4, vocab, stride),
                  make_view(logit_row.data(), 4),
                  &entry,
                  masks.ring.data(),
                  masks.max_rows});
    EXPECT_EQ(logit_row, (std::vector<int32_t>{7, 8, 9, kWithheldRow}));
    for (int64_t i = 0; i < 4; ++i) {
      for (int64_t t = 0; t < stride; ++t) {
        const auto at = static_cast<size_t>(i * stride + t);
        if (t < vocab && list[i] >= 0 && !masks.allows(list[i], t)) {
          EXPECT_EQ(logits[at], -INFINITY) << vocab << " row " << i << " token " << t;
        } else {
          EXPECT_EQ(logits[at], before[at]) << vocab << " row " << i << " token " << t;
        }
      }
    }
  }
}

// Of a share of the rows: masks for those, and every withheld row.
TEST(GrammarMask, AShareOfTheRows) {
  testing::CpuHarness cpu;
  constexpr int64_t kVocab = 40;
  constexpr int64_t kMaxRows = 4;
  std::vector<int32_t> ring(static_cast<size_t>(mask_entry_words(kMaxRows, kVocab)));
  const int32_t list[] = {0, 1, kWithheldRow, 0};
  std::copy(std::begin(list), std::end(list), ring.begin());
  ring[kMaxRows] = 1;                             // mask 0: token 0
  ring[kMaxRows + mask_words(kVocab)] = 1 << 30;  // mask 1: token 30
  std::vector<float> logits(2 * kVocab, 1.0F);
  std::vector<int32_t> logit_row{5, 6, 7, 8};
  const int32_t entry = 0;
  grammar_mask(*cpu.stream,
               {make_view(logits.data(), 2, kVocab),
                make_view(logit_row.data(), 4),
                &entry,
                ring.data(),
                kMaxRows,
                1});
  EXPECT_EQ(logit_row, (std::vector<int32_t>{5, 6, kWithheldRow, 8}));
  for (int64_t t = 0; t < kVocab; ++t) {
    EXPECT_EQ(logits[static_cast<size_t>(t)], t == 30 ? 1.0F : -INFINITY);
    EXPECT_EQ(logits[static_cast<size_t>(kVocab + t)], 1.0F);
  }
}

}  // namespace
}  // namespace warprow
