// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/device.h"
#include "kernels/attention/paged_attention.h"
#include "kernels/rope/rope_kv_write.h"

#include <cstddef>
#include <cstdint>

namespace warprow {

// Bytes of PagedAttentionArgs::scratch on CUDA, for calls of at most max_rows batch rows whose decode rows
// have at most decode_len tokens each. The scratch also holds a step's schedule. Only the shapes of kv are
// read.
size_t native_attention_scratch_bytes(const KvLayerView& kv,
                                      int32_t num_q_heads,
                                      int32_t max_rows,
                                      int32_t decode_len);

namespace cuda {

// paged_attention in two calls, so that the layers of a step share one schedule.
struct ScheduledAttentionArgs : PagedAttentionArgs {
  int32_t schedule_window = 0;  // 0, or at least the window of every layer that uses the schedule
  // Asserts that another attention launch has come since the schedule, and since the last writes to the batch, the block table and
  // older keys. Attention calls pdl_wait before it lets the next kernel start, so all of these are complete when this launch
  // starts, even if it starts early. Decode then prefetches older keys while preceding launches still run.
  bool settled = false;
  // Not null: attention_forward also does the work of rope_kv_write (attention_takes_rope). q, which lies in rope->qkv, and
  // this step's keys and values are then the projection's output, without norm and rotation. qkv itself is not changed.
  const RopeKvWriteArgs* rope = nullptr;
};

// Once per step: splits the step's keys into pieces for CTAs, from the lengths on the device. Reads the
// batch, row counts, kv's shapes and schedule_window; of q, only the (padded) number of tokens.
void attention_schedule(Stream& stream, const ScheduledAttentionArgs& args);
// Once per layer, with the arguments of the schedule. Grids depend only on the shapes of the arguments and
// num_decode_rows, so both calls can be captured and replayed with other lengths.
void attention_forward(Stream& stream, const ScheduledAttentionArgs& args);
// Whether attention_forward can take rope's work too: on Hopper with sums in parts, a bf16 cache and decode rows alone.
bool attention_takes_rope(const DeviceFacts& device,
                          const ScheduledAttentionArgs& args,
                          const RopeKvWriteArgs& rope);

}  // namespace cuda
}  // namespace warprow
