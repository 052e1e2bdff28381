// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "device/cuda/launch.h"
#include "device/cuda/pdl.cuh"
#include "kernels/sample/grammar_mask.h"

// Formula, shapes, preconditions: grammar_mask.h.
// Mapping: a warp loads 32 words of a mask at once, one a lane, and then loops over them: its lanes take the
//   32 tokens of a word.
// Numerics: exact.
namespace warprow::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kWordsAWarp = 32;

struct Masks {
  float* logits;
  int64_t logits_stride;
  int32_t first;
  int32_t num_rows;  // of logits
  int32_t vocab;
  int32_t num_words;
  int32_t* logit_row;
  const int32_t* entry;
  const int32_t* ring;
  int64_t entry_words;
  int64_t max_rows;
};

__global__ void __launch_bounds__(kWarps * 32) mask_logits(Masks a) {
  pdl_wait();
  pdl_release();
  const int32_t* list = a.ring + *a.entry * a.entry_words;
  const int32_t mask = list[blockIdx.x];
  if (mask == kWithheldRow && blockIdx.y == 0 && threadIdx.x == 0) {
    a.logit_row[blockIdx.x] = kWithheldRow;
  }
  const int32_t row = static_cast<int32_t>(blockIdx.x) - a.first;
  if (mask < 0 || row < 0 || row >= a.num_rows) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x % 32);
  const int warp = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32);
  const int first_word = warp * kWordsAWarp;
  const auto* words =
      reinterpret_cast<const uint32_t*>(list + a.max_rows) + int64_t{mask} * a.num_words;
  const int at = first_word + lane;
  const uint32_t mine = at < a.num_words ? words[at] : ~0U;
  float* logits = a.logits + row * a.logits_stride;
  for (int i = 0; i < kWordsAWarp; ++i) {
    const uint32_t word = __shfl_sync(~0U, mine, i);
    const int token = (first_word + i) * 32 + lane;
    if (token < a.vocab && (word >> lane & 1U) == 0) {
      logits[token] = -INFINITY;
    }
  }
}

}  // namespace

void grammar_mask(Stream& stream, const GrammarMaskArgs& args) {
  WR_CHECK_LE(args.logit_row.shape[0], args.max_rows);
  WR_CHECK_LE(args.first + args.logits.shape[0], args.logit_row.shape[0]);
  WR_CHECK_EQ(args.logits.stride[1], 1);
  if (args.logit_row.shape[0] == 0) {
    return;
  }
  const int64_t vocab = args.logits.shape[1];
  const Masks masks{.logits = args.logits.data,
                    .logits_stride = args.logits.stride[0],
                    .first = static_cast<int32_t>(args.first),
                    .num_rows = static_cast<int32_t>(args.logits.shape[0]),
                    .vocab = static_cast<int32_t>(vocab),
                    .num_words = static_cast<int32_t>(mask_words(vocab)),
                    .logit_row = args.logit_row.data,
                    .entry = args.entry,
                    .ring = args.ring,
                    .entry_words = mask_entry_words(args.max_rows, vocab),
                    .max_rows = args.max_rows};
  const dim3 grid(static_cast<unsigned>(args.logit_row.shape[0]),
                  static_cast<unsigned>(ceil_div<int64_t>(masks.num_words, kWarps * kWordsAWarp)));
  launch(stream, "grammar_mask", {grid, kWarps * 32}, mask_logits, masks);
}

}  // namespace warprow::cuda
