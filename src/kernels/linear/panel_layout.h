// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/math.h"
#include "kernels/linear/packed_weight.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cpu {

// The CPU layout of a PackedWeight. A matrix is ceil(n / 16) panels, one after the other; a panel
// holds 16 consecutive outputs and is a multiple of 64 bytes. The last panel is padded with zeros.
//
// * plain kinds: value[k][16], the 16 outputs' weights of one input side by side;
// * kQ8: dword[k / 4][16], byte j of dword [i][r] being the s8 of output r and input 4i + j;
// * kQ4: dword[k / 8][16], two inputs a byte: within a group of g inputs, dword i holds inputs 4i..
//   in its low nibbles and inputs g / 2 + 4i.. in its high ones;
// * after both of these, for each group: scale[16] and, if there are any, bias[16], f16 or f32.
//
// One 64-byte vector thus feeds four inputs of 16 outputs to an int8 dot product with a broadcast
// activation dword, and a shift by 8j gives the 16 weights of one input for the float path: one
// copy of the weights serves both.
inline constexpr int64_t kPanelRows = 16;

struct PanelLayout {
  int64_t num_panels = 0;
  int64_t panel_bytes = 0;
  int64_t scales_offset = 0;      // from the panel's start; quantised kinds
  int64_t scale_group_bytes = 0;  // from one group's scales to the next; biases: its second half
};

inline bool is_quantised(PackedKind kind) {
  return kind == PackedKind::kQ4 || kind == PackedKind::kQ8;
}

inline PanelLayout panel_layout(const PackedWeight& w) {
  PanelLayout layout;
  layout.num_panels = ceil_div<int64_t>(w.n, kPanelRows);
  if (!is_quantised(w.kind)) {
    layout.panel_bytes =
        round_up<int64_t>(w.k * kPanelRows * (w.kind == PackedKind::kF32 ? 4 : 2), 64);
    return layout;
  }
  layout.scales_offset = w.k * kPanelRows / (w.kind == PackedKind::kQ4 ? 2 : 1);
  layout.scale_group_bytes = kPanelRows * (w.f16_scales ? 2 : 4) * (w.has_bias ? 2 : 1);
  layout.panel_bytes =
      round_up<int64_t>(layout.scales_offset + w.k / w.group * layout.scale_group_bytes, 64);
  return layout;
}

}  // namespace warprow::cpu
