// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx512
#include "kernels/rope/rope_kv_write_loops.inl"
