// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/native_decode_cuda.cuh"

namespace warprow::cuda {

void native_hopper_decode_128(Stream& stream, const NativeParams& params, int32_t num_blocks) {
  launch_decode<128>(stream, params, tma_maps(params, 128), num_blocks);
}

}  // namespace warprow::cuda
