// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "device/stream.h"
#include "kernels/attention/native_params.h"

namespace warprow::cuda {

// Number of key tiles that the last num_toks queries of a sequence see.
WR_HD inline int32_t decode_tiles(int32_t seq_len, int32_t num_toks, int32_t window) {
  if (seq_len <= 0 || num_toks <= 0) {
    return 0;
  }
  const int32_t seen = window + num_toks - 1;
  const int32_t first = window > 0 && seq_len > seen ? seq_len - seen : 0;
  return (seq_len + kDecodeTile - 1) / kDecodeTile - first / kDecodeTile;
}

void native_schedule(Stream& stream, const ScheduleParams& params);
void native_decode_64(Stream& stream, const NativeParams& params, int32_t num_blocks);
void native_decode_128(Stream& stream, const NativeParams& params, int32_t num_blocks);
void native_hopper_decode_64(Stream& stream, const NativeParams& params, int32_t num_blocks);
void native_hopper_decode_128(Stream& stream, const NativeParams& params, int32_t num_blocks);
// For Hopper: tiles of 128 query-head rows, one CTA an SM.
void native_hopper_64(Stream& stream, const NativeParams& params, int32_t num_blocks);
void native_hopper_128(Stream& stream, const NativeParams& params, int32_t num_blocks);
// num_tiles: no less than the number of tiles in the schedule. wide: tiles of 128 query-head rows instead of
// 64.
void native_prefill_64(Stream& stream, const NativeParams& params, int64_t num_tiles, bool wide);
void native_prefill_128(Stream& stream, const NativeParams& params, int64_t num_tiles, bool wide);

}  // namespace warprow::cuda
