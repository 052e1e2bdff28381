// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "worker/model_plan.h"

#include <cstdint>

namespace warprow {

// How the chunks of a deep prompt are limited; see SchedulerConfig::max_prefill_pairs.
struct DeepPrefill {
  int64_t max_pairs = 0;  // query-key pairs; 0: no layer attends to all earlier tokens
  int32_t min_chunk = 1;  // fewer tokens would leave a part of the device idle
};

// The attention of a chunk may take as many operations as the matrices of a full step, or as many as the device
// computes in about a quarter of a second, if that is more. So a step of a deep prompt stays short enough for others
// to wait for. Attention that a window bounds does not grow with depth and is not counted.
DeepPrefill deep_prefill(const ModelPlan& plan);

}  // namespace warprow
