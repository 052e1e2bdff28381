// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/op.h"

namespace warprow {

// What the router's logits become.
//  kSoftmax: softmax over all experts, before the choice (Qwen3-MoE, Mixtral).
//  kSoftmaxOfChosen: softmax over the chosen ones (gpt-oss). Equal to kSoftmax with `normalise` but for rounding.
enum class RouterScores : uint8_t { kSoftmax, kSoftmaxOfChosen };

// Chooses the experts of each row, and lists each expert's rows.
//
// Formula: the num_chosen largest logits[t, e] in falling order, of equal ones the lower e first; with NaN among them any.
//   s = softmax(logits[t]); weights[t, j] = s[choice j], with `normalise` divided by their sum.
// Shapes: logits [T, num_experts], weights [T, num_chosen]; T may be 0. Rows past *lists.num_rows are not read, and
//   their weights not written.
// Mapping: CPU: rows in parallel, the lists by one thread. CUDA: a warp a row, then one CTA for the lists; for few rows
//   one CTA does both.
// Numerics: float32. A row's choice and weights depend on its own logits alone.
// Preconditions: num_chosen <= num_experts <= 1024, num_chosen <= 32.
// Origin: own; Shazeer et al., "Outrageously Large Neural Networks", 2017.
struct RouteExpertsArgs {
  View<const float, 2> logits;
  View<float, 2> weights;
  ExpertLists lists;
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;
};

WR_OP(route_experts, RouteExpertsArgs);

}  // namespace warprow
