// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/native_prefill_cuda.cuh"

namespace warprow::cuda {

void native_prefill_128(Stream& stream, const NativeParams& params, int64_t num_tiles, bool wide) {
  launch_prefill<128>(stream, params, num_tiles, wide);
}

}  // namespace warprow::cuda
