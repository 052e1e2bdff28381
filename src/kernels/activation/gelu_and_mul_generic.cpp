// SPDX-License-Identifier: Apache-2.0
#define WR_ISA generic
#include "kernels/activation/gelu_and_mul_loops.inl"
