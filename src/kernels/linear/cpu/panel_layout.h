// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// The CPU layout of a PackedWeight. A matrix is ceil(n / 16) consecutive panels. A panel holds 16 consecutive
// outputs and is a multiple of 64 bytes long. The last panel is padded with zeros.
//
// * kF32, kF16: value[k][16], the 16 outputs' weights of one input side by side;
// * kQ8: dword[k / 4][16]; byte j of dword [i][r] is the s8 of output r and input 4i + j;
// * kQ4: dword[k / 8][16], two inputs a byte: within a group of g inputs, dword i holds inputs 4i..
//   in its low nibbles and inputs g / 2 + 4i.. in its high nibbles;
// * kQ5, kQ6: for each group the nibbles as kQ4, then a plane, dword[16], with the upper bits:
//   byte j of a dword holds those of inputs 4i + j, one bit (kQ5) at bit i or two (kQ6) at bit 2i;
// * kMxfp4, kTable and kTable16: as kQ4;
// * kQ2: for each group a dword[16]; byte j of it holds the two bits of inputs 4i + j at bit 2i;
// * after all of these the scales: for each group scale[16] and, if there are any, bias[16], f16 or
//   f32 (ScaleForm::kF32).
//   ScaleForm::kSplit: for each kSplitInputs inputs the halves of scale[16] and bias[16], then for
//   each group their s8 factors. ScaleForm::kE8M0: for each group a byte for each output;
// * kBF16: dword[ceil(k / 2)][16], with the even input in the low half, as a dot product of bf16 pairs
//   takes them.
//
// So one 64-byte vector feeds four inputs of 16 outputs to an int8 dot product with a broadcast activation
// dword. For the float path, a shift by 8j gives the 16 weights of one input. One copy of the weights serves
// both paths.
inline constexpr int64_t kPanelRows = 16;

struct PanelLayout {
  int64_t num_panels = 0;
  int64_t panel_bytes = 0;
  int64_t scales_offset = 0;      // from the panel's start; quantised kinds
  int64_t scale_group_bytes = 0;  // stride between groups' scales; the biases are its second half
  int64_t split_bytes = 0;        // kSplit: stride between the scales of kSplitInputs inputs
};

inline bool is_quantised(PackedKind kind) { return kind >= PackedKind::kQ4; }

// Bits of a stored quantised value.
inline int64_t stored_bits(PackedKind kind) {
  switch (kind) {
    case PackedKind::kQ2:
      return 2;
    case PackedKind::kQ4:
    case PackedKind::kMxfp4:
    case PackedKind::kTable:
    case PackedKind::kTable16:
      return 4;
    case PackedKind::kQ5:
      return 5;
    case PackedKind::kQ6:
      return 6;
    default:
      return 8;
  }
}

// Inputs that share a scale. Groups of kQ8 may also have kWideGroup inputs (panel_kernels.h).
inline int32_t group_of(PackedKind kind) {
  return kind == PackedKind::kQ2 || kind == PackedKind::kQ6 || kind == PackedKind::kTable16 ? 16
                                                                                            : 32;
}

inline int64_t scale_bytes_of(ScaleForm scales) {
  return scales == ScaleForm::kE8M0 ? 1 : scales == ScaleForm::kF32 ? 4 : 2;
}

inline PanelLayout panel_layout(const PackedWeight& w) {
  PanelLayout layout;
  layout.num_panels = ceil_div<int64_t>(w.n, kPanelRows);
  if (!is_quantised(w.kind)) {
    const int64_t values = w.kind == PackedKind::kBF16 ? round_up<int64_t>(w.k, 2) : w.k;
    layout.panel_bytes =
        round_up<int64_t>(values * kPanelRows * (w.kind == PackedKind::kF32 ? 4 : 2), 64);
    return layout;
  }
  layout.scales_offset = w.k * kPanelRows * stored_bits(w.kind) / 8;
  const int64_t lanes = kPanelRows * (w.has_bias ? 2 : 1);
  int64_t scale_bytes = 0;
  if (w.scales == ScaleForm::kSplit) {
    layout.scale_group_bytes = lanes;
    layout.split_bytes = 2 * lanes + kSplitInputs / w.group * layout.scale_group_bytes;
    scale_bytes = w.k / kSplitInputs * layout.split_bytes;
  } else {
    layout.scale_group_bytes = lanes * scale_bytes_of(w.scales);
    scale_bytes = w.k / w.group * layout.scale_group_bytes;
  }
  layout.panel_bytes = round_up<int64_t>(layout.scales_offset + scale_bytes, 64);
  return layout;
}

}  // namespace warprow::cpu
