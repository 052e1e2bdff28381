// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx2
#include "kernels/activation/gelu_and_mul_loops.inl"
