// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

namespace warprow {

constexpr float kGreedyBelow = 1e-5F;       // lower temperatures mean argmax
constexpr float kLeastTemperature = 0.01F;  // temperatures from kGreedyBelow to this act as this

WR_HD constexpr bool is_greedy(float temperature) { return temperature < kGreedyBelow; }

// The divisor for the logits of a row that is not greedy.
WR_HD constexpr float effective_temperature(float temperature) {
  return temperature < kLeastTemperature ? kLeastTemperature : temperature;
}

}  // namespace warprow
