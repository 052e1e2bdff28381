// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// Gathers rows (the hidden states that need logits), or copies all of them.
//
// Formula: out[i] = x[index[i]], or zeros if index[i] is negative; without an index out[i] = x[i].
// Shapes: x [T, width], index [n] or empty, out [n, width] (any row strides).
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
