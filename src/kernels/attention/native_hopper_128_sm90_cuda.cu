// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/native_hopper_cuda.cuh"

namespace warprow::cuda {

void native_hopper_128(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  launch_hopper<128>(stream, params, num_blocks);
}

}  // namespace warprow::cuda
