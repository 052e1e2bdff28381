// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/act_view.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/linear/linear.h"
#include "kernels/op.h"

namespace warprow {

// Sums the outputs of a row's experts, times their weights.
//
// Formula: v[t, i] = sum over j in ascending order of weights[t, j] * x[places[t * num_chosen + j], i];
//   y[t, i] = v[t, i], or with `add` y[t, i] += v[t, i]. With next_norm, then the first half of the norm of y's rows, as
//   begin_norm of linear/half_norm.h, bit for bit.
// Shapes: x [T * num_chosen, width], weights [T, num_chosen], y [T, width] (any row strides). Rows past *lists.num_rows
//   are not written.
// Mapping: CPU: rows in parallel. CUDA: four or eight elements of a row a thread.
// Numerics: float32, a fused multiply-add a term from zero on; an element depends on its row's values alone.
// Preconditions: y does not overlap x; width a multiple of 8, with next_norm of 64; other operations lie between
//   route_experts and this one.
// Origin: own.
struct CombineExpertsArgs {
  ConstActView x;
  View<const float, 2> weights;
  View<float, 2> y;
  ExpertLists lists;
  bool add = false;
  const HalfNorm* next_norm = nullptr;  // CUDA, or null
};

WR_OP(combine_experts, CombineExpertsArgs);

}  // namespace warprow
