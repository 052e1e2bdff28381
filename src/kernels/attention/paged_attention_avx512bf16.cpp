// SPDX-License-Identifier: Apache-2.0
#define WR_ISA avx512bf16
#include "kernels/attention/paged_attention_loops.inl"
