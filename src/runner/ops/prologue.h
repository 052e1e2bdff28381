// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/combine_tokens.h"
#include "runner/ops/pad_tail.h"
#include "runner/ops/positions.h"
#include "runner/ops/prefill_inputs.h"
#include "runner/ops/slot_mapping.h"

#include <cstdint>

namespace warprow {

// Everything between a step's upload and its forward, in one launch: one team per batch_idx up to
// the padded row count, then one per piece of the padded tail. No part reads what another writes,
// so a row's parts need no barrier. A part whose arrays are null does nothing.
struct Prologue {
  static constexpr int64_t kTailPiece = 256;

  PrefillInputs prefill;
  PosSeqLens lengths;
  CombineTokens combine;
  SlotMapping slots;
  PadTail tail;
  int64_t num_rows = 0;   // padded
  int64_t num_items = 0;  // of the tail

  [[nodiscard]] WR_HD int64_t num_teams() const {
    return num_rows + (num_items + kTailPiece - 1) / kTailPiece;
  }

  template <typename Team>
  WR_HD void operator()(int64_t index, const Team& team) const {
    if (index >= num_rows) {
      const int64_t first = (index - num_rows) * kTailPiece;
      const int64_t left = num_items - first;
      team.for_each(left < kTailPiece ? left : kTailPiece, [&](int64_t i) { tail(first + i); });
      return;
    }
    prefill(index, team);
    lengths(index, team);
    combine(index, team);
    slots(index, team);
  }
};

}  // namespace warprow
