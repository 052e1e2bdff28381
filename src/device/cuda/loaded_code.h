// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace warprow::cuda {

// The virtual architecture that the portable kernels were compiled for, as the driver loads them on the current
// device: 90 if it loads the binaries for 9.0, 80 if it loads those for 8.x or compiles the PTX. Equals
// __CUDA_ARCH__ / 10 in them. 0: it can load none.
int32_t portable_code();

// Whether the driver loads binaries for sm_90a on the current device. With CUDA_FORCE_PTX_JIT=1 it
// does not, since they have no PTX.
bool loads_sm90_code();

}  // namespace warprow::cuda
