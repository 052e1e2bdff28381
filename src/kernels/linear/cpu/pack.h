// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// Packs weight rows into the CPU layout (panel_layout.h), on the host and panel by panel: a loader needs only
// the rows of one panel at a time, and several threads may pack disjoint panels.
//
// The data of `shape`, a PackedWeight, is not read. n and k are positive. Quantised kinds need their group
// (group_of; kQ8 also kWideGroup), and k is a multiple of it; with ScaleForm::kSplit, of kSplitInputs. Zero points are 0 or
// half of the stored range; kQ2's, kQ8's and those of tables are 0, kMxfp4's kMxfp4Zero. Anything else is a bug of the caller (checked).

// Outputs per panel: the unit in which loaders pack. Row splits should be multiples of it.
inline constexpr int64_t kRowsPerPanel = 16;

size_t packed_bytes(const PackedWeight& shape);
size_t packed_panel_bytes(const PackedWeight& shape);

// pack_groups and pack_values pack rows [first_row, first_row + num_rows). first_row is a multiple of
// kRowsPerPanel, and so is num_rows unless the rows end with the matrix. `dst` is the panel of first_row
// (64-byte aligned by the time it is used). A partial last panel is padded with zeros.

// Scales and biases as products of an IEEE half per kSplitInputs inputs and an s8 per group.
struct SplitRows {
  const uint16_t* scale_half = nullptr;  // [num_rows, k / kSplitInputs]
  const int8_t* scale_factor = nullptr;  // [num_rows, k / group]
  const uint16_t* bias_half = nullptr;   // as the scales; not read if the shape has no bias
  const int8_t* bias_factor = nullptr;
};
struct GroupRows {
  // [num_rows, k]  q without zero point: in [-zp, 2^bits - 1 - zp]; kMxfp4: twice an e2m1 number;
  // tables: one of their numbers
  const int8_t* q;
  const float* scale;    // [num_rows, k / group]; not read with ScaleForm::kSplit
  const float* bias;     // [num_rows, k / group]; same, also not read without a bias
  SplitRows split = {};  // ScaleForm::kSplit only
};
// w = scale * q + bias. With ScaleForm::kF16 every scale and bias must be an IEEE half (checked), with kE8M0 a power of
// two (checked); below 2^-126 it becomes 0.
void pack_groups(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const GroupRows& rows);

// values: [num_rows, k] in f32, or raw f16 or bf16, according to the kind.
void pack_values(const PackedWeight& shape,
                 std::byte* dst,
                 int64_t first_row,
                 int64_t num_rows,
                 const void* values);

}  // namespace warprow::cpu
