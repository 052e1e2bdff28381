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
// their group (kQ6 16, else 32) and k a multiple of it, with ScaleForm::kSplit of kSplitInputs;
// zero points are 0 or half of the stored range, kQ8's 0. Anything else is a caller's bug (checked).

// Outputs per panel: what a loader packs at once, and what row splits should be a multiple of.
inline constexpr int64_t kRowsPerPanel = 16;

size_t packed_bytes(const PackedWeight& shape);
size_t packed_panel_bytes(const PackedWeight& shape);

// Both pack rows [first_row, first_row + num_rows), first_row a multiple of kRowsPerPanel, num_rows
// one too unless the rows end with the matrix. `dst` is where the panel of first_row begins
// (64-byte aligned once it is used); a short last panel is filled up with zeros.

// Scales and biases as products: of an IEEE half for kSplitInputs inputs and an s8 for each group.
struct SplitRows {
  const uint16_t* scale_half = nullptr;  // [num_rows, k / kSplitInputs]
  const int8_t* scale_factor = nullptr;  // [num_rows, k / group]
  const uint16_t* bias_half = nullptr;   // as the scales; not read if the shape has no bias
  const int8_t* bias_factor = nullptr;
};
struct GroupRows {
  const int8_t* q;       // [num_rows, k]  the true value, zero point already subtracted: within
                         // [-zp, 2^bits - 1 - zp]
  const float* scale;    // [num_rows, k / group]; not read with ScaleForm::kSplit
  const float* bias;     // [num_rows, k / group]; the same, and not read if the shape has no bias
  SplitRows split = {};  // ScaleForm::kSplit only
};
// w = scale * q + bias. With ScaleForm::kF16 every scale and bias must be an IEEE half (checked).
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
