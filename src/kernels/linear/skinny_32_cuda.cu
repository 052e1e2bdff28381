// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/skinny_cuda.cuh"

namespace warprow::cuda {

template void launch_skinny<32, 1>(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan);
template void launch_skinny<32, 2>(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan);
template void launch_skinny<32, 4>(Stream& stream, const SkinnyArgs& args, const SkinnyPlan& plan);

}  // namespace warprow::cuda
