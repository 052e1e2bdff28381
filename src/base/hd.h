// SPDX-License-Identifier: Apache-2.0
#pragma once

// WR_HD marks code that both the host compiler and nvcc compile: the functors of runner/ops and the
// scalar maths that CPU and CUDA kernels share. It is empty for a host compiler.
#if defined(__CUDACC__)
#define WR_HD __host__ __device__
#else
#define WR_HD
#endif
