// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "comm/cuda/cuda_ranks.h"

namespace warprow::cuda {

std::unique_ptr<CudaRanks> join_cuda_ranks(const Device& /*device*/,
                                           const RankPlace& /*place*/,
                                           HostGroup& /*all*/,
                                           GpuTransport /*transport*/) {
  throw StartupError(ErrorCode::kUnsupported, "this build has no CUDA support");
}

}  // namespace warprow::cuda
