// SPDX-License-Identifier: Apache-2.0
#define WR_ISA generic
#include "kernels/sample/sample_loops.inl"
