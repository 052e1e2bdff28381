// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

#include <cstdint>
#include <limits>

namespace warprow {

// Sets the logits of the stop tokens to -inf; for a request whose output is shorter than min_tokens.
// `stop_ids` is the row's entry in SampleArgs::stop_ids: a count, then the ids, which may repeat.
WR_HD inline void mask_stop_ids(const int32_t* stop_ids, float* logits, int32_t vocab) {
  for (int32_t i = 1; i <= stop_ids[0]; ++i) {
    if (stop_ids[i] >= 0 && stop_ids[i] < vocab) {
      logits[stop_ids[i]] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace warprow
