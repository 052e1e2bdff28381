// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/attention/paged_attention.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Bytes of PagedAttentionArgs::scratch on CUDA, for calls of at most max_rows batch rows whose decode rows have
// decode_len tokens each, at most; it holds a step's schedule as well. Of kv only the shapes are read.
size_t native_attention_scratch_bytes(const KvLayerView& kv,
                                      int32_t num_q_heads,
                                      int32_t max_rows,
                                      int32_t decode_len);

namespace cuda {

// paged_attention in two halves, so that the layers of a step share one schedule.
struct ScheduledAttentionArgs : PagedAttentionArgs {
  int32_t schedule_window = 0;  // 0, or at least the window of every layer that uses the schedule
  // Of what attention reads, the launch right before this one wrote at most q and this step's keys
  // and values, and it lets dependents start only after its own pdl_wait: so the batch, the block
  // table, the schedule and older keys are complete when this launch starts, even early. Decode
  // then fetches older keys while the launch before still runs.
  bool settled = false;
};

// Once per step: deals the step's keys out to blocks, from the lengths on the device. Reads batch,
// row counts, kv's shapes and schedule_window; q gives the (padded) number of tokens only.
void attention_schedule(Stream& stream, const ScheduledAttentionArgs& args);
// Per layer, with the arguments that the schedule had. Grids depend on the shapes of the arguments
// and num_decode_rows alone, so both calls can be replayed with other lengths.
void attention_forward(Stream& stream, const ScheduledAttentionArgs& args);

}  // namespace cuda
}  // namespace warprow
