// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// Picks rows, the hidden states whose logits are wanted, or copies them all.
//
// Formula: out[i] = x[index[i]], or zeros where index[i] is negative; without an index out[i] = x[i].
// Shapes: x [T, width], index [n] or empty, out [n, width] (row strides free).
// Mapping: CPU: rows in parallel, one copy each.
// Bytes moved: 8 * n * width.
// Numerics: exact.
// Preconditions: index < T; out does not overlap x.
// Origin: own.
struct GatherRowsArgs {
  ConstActView x;
  View<const int32_t, 1> index;
  ActView out;
};

WR_OP(gather_rows, GatherRowsArgs);

}  // namespace warprow
