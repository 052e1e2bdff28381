// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/sm80_gemm_cuda.cuh"

namespace warprow::cuda {

template void launch_sm80_gemm<32, 1>(Stream& stream,
                                      const Sm80GemmArgs& args,
                                      const Sm80GemmPlan& plan);
template void launch_sm80_gemm<32, 2>(Stream& stream,
                                      const Sm80GemmArgs& args,
                                      const Sm80GemmPlan& plan);
template void launch_sm80_gemm<32, 4>(Stream& stream,
                                      const Sm80GemmArgs& args,
                                      const Sm80GemmPlan& plan);

}  // namespace warprow::cuda
