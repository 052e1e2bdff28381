// SPDX-License-Identifier: Apache-2.0
#pragma once

// Replaces FlashInfer's cutlass_utils.cuh, which includes CUTLASS's test tools and so doubles the compile
// time. Defining its include guard keeps the original out.
#define FLASHINFER_CUTLASS_UTILS_CUH_

#include <cute/tensor.hpp>
#include <cutlass/cutlass.h>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/numeric_types.h>
