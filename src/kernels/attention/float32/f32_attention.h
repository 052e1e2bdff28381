// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/paged_attention.h"

#include <cstdint>

namespace warprow::cuda {

inline constexpr int32_t kMaxF32HeadDim = 256;

// paged_attention with float32 queries, outputs and cache, for --dtype float32. Slow, and exact: no tensor cores.
//
// Formula, shapes: paged_attention.h.
// Mapping: a CTA of 128 threads computes one query and head. It takes 128 keys at a time: a thread a key for the scores,
//   then a thread one or two elements of the output.
// Bytes moved: for each query and head its visible keys and values, mostly from the L2 cache.
// Numerics: float32, accurate exponentials. A score is one chain over the head's elements. Keys are taken in tiles of
//   128, aligned to absolute positions. A tile's weights, and its weighted values, are one chain each, which is added
//   to the earlier sums times the exponential of the change of the maximum. The result is a function of the query and
//   its keys alone: bit-equal for any batch, chunk, block size and draft.
// Preconditions: head sizes are multiples of 4 and at most kMaxF32HeadDim. scratch, num_decode_rows, num_decode_toks,
//   decode_len and batch_invariant are not read.
// Origin: own; online softmax as in paged_attention.h.
void f32_attention(Stream& stream, const PagedAttentionArgs& args);

}  // namespace warprow::cuda
