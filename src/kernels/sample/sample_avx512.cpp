// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx512
#include "kernels/sample/sample_loops.inl"
