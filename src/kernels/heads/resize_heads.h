// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// Copies rows of heads to heads of another size, for kernels that have only some sizes.
//
// Formula: out[t, h, i] = x[t, h, i] for i below the size of x's heads, else 0.
// Shapes: x [T, num_heads * from], out [T, num_heads * to] (any row strides), of one type.
// Mapping: CPU: rows in parallel. CUDA: a thread an element of out.
// Bytes moved: T * num_heads * (min(from, to) + to) elements.
// Numerics: exact.
// Preconditions: out does not overlap x.
// Origin: own.
struct ResizeHeadsArgs {
  ConstActView x;
  ActView out;
  int32_t num_heads = 1;
};

WR_OP(resize_heads, ResizeHeadsArgs);

}  // namespace warprow
