// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/wide_cuda.cuh"

namespace warprow::cuda {

template void launch_wide<128, 1>(Stream& stream, const WideArgs& args, const WidePlan& plan);
template void launch_wide<128, 3>(Stream& stream, const WideArgs& args, const WidePlan& plan);

}  // namespace warprow::cuda
