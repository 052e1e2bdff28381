// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx512
#include "kernels/norm/rms_norm_loops.inl"
