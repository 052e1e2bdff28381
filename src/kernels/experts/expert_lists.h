// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"

#include <cstdint>

namespace warprow {

// The experts of each row, and the rows of each expert. Slot t * num_chosen + j is row t's j-th choice. Sorted by expert,
// then ascending, the slots have places 0, 1, ...; rows of products with experts' matrices lie by place, so that an
// expert's rows are contiguous.
struct ExpertLists {
  int32_t num_experts = 0;
  int32_t num_chosen = 0;  // by each row, at most 32
  View<int32_t, 1> first =
      {};  // dev [num_experts + 1]  the place of each expert's first slot; the last: all slots
  View<int32_t, 1> slots = {};   // dev [T * num_chosen]  by place
  View<int32_t, 1> places = {};  // dev [T * num_chosen]  by slot
  // dev [1] or null: how many of the T rows are real. Rows behind them choose no expert.
  const int32_t* num_rows = nullptr;
};

}  // namespace warprow
