// SPDX-License-Identifier: Apache-2.0
#define WR_ISA generic
#include "kernels/rope/rope_kv_write_loops.inl"
