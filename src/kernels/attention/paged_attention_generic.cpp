// SPDX-License-Identifier: Apache-2.0
#define WR_ISA generic
#include "kernels/attention/paged_attention_loops.inl"
