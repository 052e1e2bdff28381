// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// Packing of weight rows into the CPU layout (panel_layout.h), on the host and panel by panel: a
// loader needs only the rows of one panel at a time, and several threads may pack disjoint panels.
//
// `shape` is a PackedWeight whose data is not looked at. n and k are positive; quantised kinds need
// group 16 or 32 and k a multiple of it, kQ4 a zero point of 0 or 8, kQ8 of 0. Anything else is a
// caller's bug (checked).

// Outputs per panel: what a loader packs at once, and what row splits should be a multiple of.
inline constexpr int64_t kRowsPerPanel = 16;

size_t packed_bytes(const PackedWeight& shape);
size_t packed_panel_bytes(const PackedWeight& shape);

// Both pack rows [first_row, first_row + num_rows), first_row a multiple of kRowsPerPanel, num_rows
// one too unless the rows end with the matrix. `dst` is where the panel of first_row begins
// (64-byte aligned once it is used); a short last panel is filled up with zeros.

struct GroupRows {
  const int8_t* q;     // [num_rows, k]  the true value, zero point already subtracted; kQ4: within
                       // [-zp, 15 - zp]
  const float* scale;  // [num_rows, k / group]
  const float* bias;   // [num_rows, k / group]; not read if the shape has no bias
};
// w = scale * q + bias. With f16_scales every scale and bias must be an IEEE half (checked).
void pack_groups(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const GroupRows& rows);

// values: [num_rows, k] of f32, or of raw f16 or bf16, as the kind says.
void pack_values(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const void* values);

}  // namespace warprow::cpu
