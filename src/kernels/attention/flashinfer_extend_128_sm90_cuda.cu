// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/flashinfer_extend.cuh"

namespace warprow::cuda {

void flashinfer_extend_128(Stream& stream, const FlashInferArgs& args, const ExtendWork& work) {
  flashinfer_extend<128>(stream, args, work);
}

}  // namespace warprow::cuda
