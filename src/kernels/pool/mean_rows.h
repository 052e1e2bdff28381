// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/op.h"

#include <cstdint>

namespace warprow {

// The mean of each range of rows.
//
// Formula: out[r] = sum of x[t] over t from starts[r] to starts[r + 1] - 1, divided by their number; zeros for none.
// Shapes: x [T, width] (any row stride), starts [R + 1], out [R, width].
// Mapping: CPU: ranges in parallel. CUDA: a thread a column of a range.
// Bytes moved: T * width elements of x, 4 * R * width.
// Numerics: float64 sums in the order of the rows, rounded once: a mean depends on its rows alone.
// Preconditions: starts do not fall and end at T or before. On CUDA out may be pinned host memory.
// Origin: own.
struct MeanRowsArgs {
  ConstActView x;
  View<const int32_t, 1> starts;
  View<float, 2> out;
};

WR_OP(mean_rows, MeanRowsArgs);

}  // namespace warprow
