// SPDX-License-Identifier: Apache-2.0
#pragma once

// Stands in for FlashInfer's cutlass_utils.cuh, which drags in CUTLASS's test tools and with them
// half of the compile time. Its include guard keeps the original out.
#define FLASHINFER_CUTLASS_UTILS_CUH_

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/numeric_types.h>
