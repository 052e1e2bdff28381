// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx2
#include "kernels/norm/rms_norm_loops.inl"
