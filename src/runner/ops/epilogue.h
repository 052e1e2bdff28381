// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "runner/ops/post_update.h"
#include "runner/ops/publish_output.h"

#include <cstdint>

namespace warprow {

// Everything behind sampling, in one launch: how many tokens a row yields, its new state, its
// results in the host's ring. One item per batch_idx, the parts one after the other. A launch over
// more items than the step has rows does nothing for those behind.
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
