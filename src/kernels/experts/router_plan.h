// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "base/math.h"

#include <cstddef>
#include <cstdint>

namespace warprow::cuda {

inline constexpr int32_t kRouterCtas = 8;  // of the cluster
inline constexpr int32_t kRouterWarps = 16;
inline constexpr int32_t kMaxRouterRows = 32;
inline constexpr int32_t kMaxRouterExperts = 256;

// How the CTAs of router_sm90_cuda.cu share a router's product. A CTA has one part of k, and tiles of 16 experts.
struct RouterPlan {
  int32_t parts = 1;    // of k, as invariant_chunks
  int32_t tiles = 0;    // of 16 experts, of a CTA
  int32_t pitch = 0;    // bytes of a part of a row in shared memory
  int32_t eights = 0;   // of rows
  int32_t experts = 0;  // with those of tiles that have fewer than 16
  size_t shared_bytes = 0;
};
RouterPlan router_plan(
    int32_t num_rows, int32_t num_experts, int32_t num_chosen, int32_t k, int32_t parts);

// The experts of a lane, of which a warp has one for each of its lanes: the kernel's instance.
constexpr int32_t router_experts_a_lane(int32_t num_experts) {
  return num_experts <= 32 ? 1 : num_experts <= 128 ? 4 : 8;
}

// Where a CTA's shared memory has rows of x, sums of the parts of its rows [parts, eights, experts], and what is computed from
// these: logits and keys [eights, 32 * router_experts_a_lane], and the choices of all rows. Rows of w are at its beginning.
WR_HD constexpr int32_t router_x_at(const RouterPlan& plan) { return plan.tiles * 16 * plan.pitch; }
WR_HD constexpr int32_t router_sums_at(const RouterPlan& plan) {
  return router_x_at(plan) + plan.eights * 8 * plan.pitch;
}
WR_HD constexpr int32_t router_logits_at(const RouterPlan& plan) {
  return router_sums_at(plan) + plan.parts * plan.eights * plan.experts * 4;
}

}  // namespace warprow::cuda
