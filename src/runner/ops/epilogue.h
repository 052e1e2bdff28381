// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/post_update.h"
#include "runner/ops/publish_output.h"

#include <cstdint>

namespace warprow {

// Everything after sampling, in one launch: how many tokens a row yields, its new state, its results in the output
// ring. One item per batch_idx runs the parts one after the other. Items past the step's rows do nothing.
struct Epilogue {
  CountSampled count;
  PostUpdate update;
  PublishOutput publish;

  WR_HD void operator()(int64_t batch_idx) const {
    if (count.step.idx_mapping != nullptr && count.step.idx_mapping[batch_idx] < 0) {
      return;
    }
    count(batch_idx);
    update(batch_idx);
    publish(batch_idx);
  }
};

}  // namespace warprow
