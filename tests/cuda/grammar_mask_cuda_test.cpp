// SPDX-License-Identifier: Apache-2.0
// The CUDA mask kernel against the CPU's, bit for bit, with masks in pinned memory.
#include "kernels/sample/grammar_mask.h"
#include "tests/cuda/cuda_test.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <vector>

#include <gtest/gtest.h>

namespace warprow {
namespace {

using testing::CudaTest;

class GrammarMaskCuda : public CudaTest {
 protected:
  // A ring of two entries. The step uses the second. Logits are those of all rows.
  void compare(int64_t num_rows, int64_t vocab, int64_t pad) {
    compare_share(num_rows, vocab, pad, 0, num_rows);
  }
  // Logits are those of rows [first, first + count).
  void compare_share(int64_t num_rows, int64_t vocab, int64_t pad, int64_t first, int64_t count) {
    const int64_t max_rows = num_rows + 2;
    const auto words = static_cast<size_t>(2 * mask_entry_words(max_rows, vocab));
    PinnedBuffer ring = gpu().make_pinned(words * sizeof(int32_t));
    std::mt19937 rng(static_cast<uint32_t>(vocab));
    std::fill_n(ring.as<int32_t>(), words, -99);
    int32_t* list = ring.as<int32_t>() + mask_entry_words(max_rows, vocab);
    auto* masks = reinterpret_cast<uint32_t*>(list + max_rows);
    for (int64_t i = 0; i < num_rows; ++i) {
      list[i] = static_cast<int32_t>(num_rows - 1 - i);
      for (int64_t w = 0; w < mask_words(vocab); ++w) {
        const uint32_t kind = rng() % 3;
        masks[i * mask_words(vocab) + w] = kind == 0   ? 0
                                           : kind == 1 ? ~0U
                                                       : static_cast<uint32_t>(rng());
      }
    }
    list[num_rows / 2] = kNoMask;
    list[num_rows / 3] = kWithheldRow;

    const int64_t stride = vocab + pad;
    std::vector<float> logits(static_cast<size_t>(count * stride));
    std::generate(
        logits.begin(), logits.end(), [&] { return static_cast<float>(rng() % 1000) - 500.0F; });
    std::vector<int32_t> logit_row(static_cast<size_t>(num_rows), 5);
    const std::vector<int32_t> entry{1};
    float* on_gpu = upload(logits);
    int32_t* rows_on_gpu = upload(logit_row);
    grammar_mask(stream(),
                 {make_strided(on_gpu, count, vocab, stride),
                  make_view(rows_on_gpu, num_rows),
                  upload(entry),
                  ring.as<int32_t>(),
                  max_rows,
                  first});
    const std::vector<float> got = download(on_gpu, logits.size());
    const std::vector<int32_t> got_rows = download(rows_on_gpu, logit_row.size());
    grammar_mask(cpu_stream(),
                 {make_strided(logits.data(), count, vocab, stride),
                  make_view(logit_row.data(), num_rows),
                  entry.data(),
                  ring.as<int32_t>(),
                  max_rows,
                  first});
    EXPECT_EQ(std::memcmp(got.data(), logits.data(), logits.size() * sizeof(float)), 0)
        << num_rows << " rows of " << vocab;
    EXPECT_EQ(got_rows, logit_row);
  }
};

TEST_F(GrammarMaskCuda, IsTheCpus) {
  compare(1, 33, 0);
  compare(5, 1024, 7);
  compare(4, 49152, 0);
  compare(7, 151936, 1);
  compare(256, 32000, 0);
}

TEST_F(GrammarMaskCuda, OfAShareIsTheCpus) {
  compare_share(8, 1024, 0, 4, 2);
  compare_share(7, 50257, 3, 6, 1);
}

}  // namespace
}  // namespace warprow
