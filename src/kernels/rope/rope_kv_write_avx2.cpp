// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx2
#include "kernels/rope/rope_kv_write_loops.inl"
