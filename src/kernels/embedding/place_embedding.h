// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/ids.h"
#include "device/view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// Adds the learned embeddings of a token's position and of its segment (token type), for encoders.
//
// Formula: x[t] += positions_table[positions[t] + first_position] + segments_table[ids[t] >> kSegmentShift]. An index that
//   a table does not have adds nothing.
// Shapes: x [T, width], rows contiguous; positions_table [.., width], segments_table [.., width], or empty.
// Mapping: CPU: rows in parallel. CUDA: a thread an element.
// Bytes moved: up to 16 * T * width.
// Numerics: float32; first the position, then the segment.
// Origin: Devlin et al., "BERT", 2018.
struct PlaceEmbeddingArgs {
  View<const int32_t, 1> ids;        // dev i32 [T]
  View<const int32_t, 1> positions;  // dev i32 [T]
  View<const float, 2> positions_table;
  View<const float, 2> segments_table;
  View<float, 2> x;
  int32_t first_position = 0;
};

WR_OP(place_embedding, PlaceEmbeddingArgs);

}  // namespace warprow
