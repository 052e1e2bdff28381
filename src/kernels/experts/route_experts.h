// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "device/view.h"
#include "kernels/act_view.h"
#include "kernels/experts/expert_lists.h"
#include "kernels/linear/linear.h"
#include "kernels/op.h"

namespace warprow {

// What the router's logits become.
//  kSoftmax: softmax over all experts, before the choice (Qwen3-MoE, Mixtral).
//  kSoftmaxOfChosen: softmax over the chosen ones (gpt-oss). Equal to kSoftmax with `normalise` but for rounding.
//  kSigmoid: the sigmoid of each; a bias takes part in the choice alone (DeepSeek-V3, GLM-4-MoE).
enum class RouterScores : uint8_t { kSoftmax, kSoftmaxOfChosen, kSigmoid };

// The product whose outputs are the logits: logits[t, e] = bias[e] + sum over i of w[e, i] * x[t, i].
struct RouterProduct {
  ConstActView x = {};          // bf16 [T, w.k]
  PackedWeight w = {};          // [num_experts, k]; without data: the logits are given
  const float* bias = nullptr;  // dev f32 [num_experts], or null
};

// Whether route_experts can compute the router's product itself, which for few rows is faster than two operations, with the
// bits that they have in a batch-invariant model. CUDA only.
bool routes_with_product(const DeviceFacts& device,
                         const LinearShape& router,
                         int64_t num_rows,
                         int32_t num_chosen,
                         int32_t num_groups);

// Chooses the experts of each row, and lists each expert's rows.
//
// Formula: the num_chosen largest logits[t, e] in falling order, of equal ones the lower e first; with NaN among them any.
//   s = softmax(logits[t]); weights[t, j] = s[choice j], with `normalise` divided by their sum.
//   kSigmoid: s = 1 / (1 + e^-logits[t]), c = s + bias. Adjacent experts are a group, of num_groups equal ones. A group's
//   score is the sum of its two largest c; the chosen_groups largest remain, of equal ones the lower first. The choice is
//   that of the num_chosen largest c of these groups; weights as above, their sum plus 1e-20.
//   Then weights[t, j] *= scale, and *= expert_scales[choice j].
// Shapes: logits [T, num_experts], weights [T, num_chosen]; T may be 0. Rows past *lists.num_rows are not read, and
//   their weights not written.
// Mapping: CPU: rows in parallel, the lists by one thread. CUDA: a warp a row, then up to 64 CTAs for the lists; for few
//   rows one CTA does both. With the router's product: router_sm90_cuda.cu.
// Numerics: float32. A row's choice and weights depend on its own logits alone.
// Preconditions: num_chosen <= num_experts <= 1024, num_chosen <= 32. With several groups: equal ones of at least two
//   experts, and num_chosen <= the experts of chosen_groups. CUDA: at most 32 groups. A product only as routes_with_product
//   allows.
// Origin: own; Shazeer et al., "Outrageously Large Neural Networks", 2017.
struct RouteExpertsArgs {
  View<const float, 2> logits;
  View<float, 2> weights;
  ExpertLists lists;
  RouterScores scores = RouterScores::kSoftmax;
  bool normalise = false;
  View<const float, 1> bias = {};  // dev f32 [num_experts] or empty; kSigmoid
  int32_t num_groups = 1;          // kSigmoid
  int32_t chosen_groups = 1;
  float scale = 1.0F;
  View<const float, 1> expert_scales = {};  // dev f32 [num_experts] or empty
  RouterProduct product = {};               // with it, logits are neither read nor written
};

WR_OP(route_experts, RouteExpertsArgs);

}  // namespace warprow
