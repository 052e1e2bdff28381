// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/experts/expert_lists.h"

#include <algorithm>
#include <cstdint>

namespace warprow::cpu {

// How many of num_rows rows are real. Read when the operation runs.
inline int64_t real_rows(const ExpertLists& lists, int64_t num_rows) {
  return lists.num_rows == nullptr ? num_rows : std::min<int64_t>(num_rows, *lists.num_rows);
}

}  // namespace warprow::cpu
