// SPDX-License-Identifier: Apache-2.0
#define WR_ISA generic
#include "kernels/norm/rms_norm_loops.inl"
