// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/linear/packed_weight.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

struct EmbeddingArgs {
  View<const int32_t, 1> ids;  // dev i32 [num_toks]
  PackedWeight table;          // [n, width]; may share the packed copy with a tied head
  ActView out;                 // [num_toks, width], rows contiguous
  // dev f32 [num_toks, width] or empty: rows for tokens without an id.
  View<const float, 2> given = {};
  float scale = 1.0F;
  int32_t first_id = 0;  // the id of the table's first row
  int32_t id_mask = -1;  // the bits of ids[t] that are the id
};

// Formula: out[t] = scale * table[(ids[t] & id_mask) - first_id], exactly dequantised. For an id that the table does not have:
//   given[t] if the id is negative and given is not empty, else zeros.
// Shapes: out [num_toks, table.k]; num_toks may be 0. Mapping (CPU): rows over the compute pool.
// Bytes moved: a row shares its 64-byte lines with 15 others, so up to 16 times its packed bytes.
// Numerics: f32, q times its own scale, then + bias, then times scale; deterministic.
// Preconditions: out.stride[1] is 1.
// Origin: own design; the packed layout is in panel_layout.h.
WR_OP(embedding, EmbeddingArgs);

}  // namespace warprow
