// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"

namespace warprow {

constexpr float kGreedyBelow = 1e-5F;       // temperatures under it mean argmax
constexpr float kLeastTemperature = 0.01F;  // those from kGreedyBelow up to it act as this

WR_HD constexpr bool is_greedy(float temperature) { return temperature < kGreedyBelow; }

// What a row that is not greedy divides its logits by.
WR_HD constexpr float effective_temperature(float temperature) {
  return temperature < kLeastTemperature ? kLeastTemperature : temperature;
}

}  // namespace warprow
