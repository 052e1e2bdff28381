// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/paged_attention.h"

#include <cstdint>

namespace warprow::cuda {

inline constexpr int32_t kMaxPlainHeadDim = 512;

// paged_attention with queries, outputs and cache of one type, float32 or bf16: for --dtype float32, and for head sizes that
// other kernels lack. Slow: no tensor cores.
//
// Formula, shapes: paged_attention.h.
// Mapping: a CTA of 128 threads computes one query and head. It takes 128 keys at a time: a thread a key for the scores,
//   then a thread one to four elements of the output.
// Bytes moved: for each query and head its visible keys and values, mostly from the L2 cache.
// Numerics: float32, accurate exponentials. A score is one chain over the head's elements. Keys are taken in tiles of
//   128, aligned to absolute positions. A tile's weights, and its weighted values, are one chain each, which is added
//   to the earlier sums times the exponential of the change of the maximum. The result is a function of the query and
//   its keys alone: bit-equal for any batch, chunk, block size and draft.
// Preconditions: head sizes are multiples of 8 and at most kMaxPlainHeadDim. scratch, num_decode_rows, num_decode_toks,
//   decode_len and batch_invariant are not read.
// Origin: own; online softmax as in paged_attention.h.
void plain_attention(Stream& stream, const PagedAttentionArgs& args);

}  // namespace warprow::cuda
