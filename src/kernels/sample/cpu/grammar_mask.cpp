// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/grammar_mask.h"

#include "device/cpu/cpu_stream.h"

#include <algorithm>
#include <limits>

namespace warprow::cpu {
namespace {

constexpr float kMasked = -std::numeric_limits<float>::infinity();

void mask_row(const uint32_t* words, float* logits, int64_t vocab) {
  for (int64_t first = 0; first < vocab; first += 32) {
    const uint32_t word = words[first / 32];
    const int64_t count = std::min<int64_t>(32, vocab - first);
    if (word == 0) {
      std::fill_n(logits + first, count, kMasked);
    } else if (word != ~0U) {
      for (int64_t i = 0; i < count; ++i) {
        logits[first + i] = (word >> i & 1U) != 0 ? logits[first + i] : kMasked;
      }
    }
  }
}

}  // namespace

void grammar_mask(Stream& stream, const GrammarMaskArgs& args) {
  WR_CHECK_LE(args.logit_row.shape[0], args.max_rows);
  WR_CHECK_LE(args.first + args.logits.shape[0], args.logit_row.shape[0]);
  as_cpu(stream).launch("grammar_mask", [args](ComputePool& pool) {
    const int64_t vocab = args.logits.shape[1];
    const int32_t* list = args.ring + *args.entry * mask_entry_words(args.max_rows, vocab);
    const auto* masks = reinterpret_cast<const uint32_t*>(list + args.max_rows);
    const int64_t last = args.first + args.logits.shape[0];
    pool.parallel_for(args.logit_row.shape[0], 1, [&](int64_t begin, int64_t end, int32_t) {
      for (int64_t i = begin; i < end; ++i) {
        if (list[i] == kWithheldRow) {
          args.logit_row(i) = kWithheldRow;
        } else if (list[i] != kNoMask && i >= args.first && i < last) {
          mask_row(masks + list[i] * mask_words(vocab), args.logits.row(i - args.first), vocab);
        }
      }
    });
  });
}

}  // namespace warprow::cpu
