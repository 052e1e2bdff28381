// SPDX-License-Identifier: Apache-2.0
#include "kernels/attention/flashinfer_fa2.cuh"

namespace warprow::cuda {

void flashinfer_fa2_128(Stream& stream,
                        const FlashInferArgs& args,
                        const Fa2Part& part,
                        const Fa2Work& work,
                        const Fa2Partials& partials) {
  flashinfer_fa2<128>(stream, args, part, work, partials);
}

}  // namespace warprow::cuda
