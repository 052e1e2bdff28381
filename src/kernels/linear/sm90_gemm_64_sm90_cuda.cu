// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/sm90_gemm_cuda.cuh"

namespace warprow::cuda {

template void launch_sm90_gemm<64, 1>(Stream& stream,
                                      const Sm90GemmArgs& args,
                                      const Sm90GemmPlan& plan);
template void launch_sm90_gemm<64, 3>(Stream& stream,
                                      const Sm90GemmArgs& args,
                                      const Sm90GemmPlan& plan);

}  // namespace warprow::cuda
