// SPDX-License-Identifier: Apache-2.0
// How sm90_quant_gemm splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/quant/quant_tiles.h"
#include "kernels/linear/quant/sm90_quant_gemm.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

constexpr int32_t kAlign = 1024;
constexpr int32_t kSms = 132;  // of an H100 and an H200

int32_t row_bytes(const Sm90QuantPlan& plan) { return (plan.groups * 64 + 4) * 4; }
int32_t parts_bytes(const Sm90QuantPlan& plan) {
  return plan.split > 1 ? plan.split * ceil_div(plan.cols, plan.split) * row_bytes(plan) : 0;
}
int32_t sum_bytes(const Sm90QuantPlan& plan) { return plan.cols * row_bytes(plan); }
// With 128 columns other CTAs write their partial sums to the ring's memory, behind the CTA's own sums.
bool sums_share_ring(const Sm90QuantPlan& plan) { return plan.cols == 128; }
int32_t ring_bytes(const Sm90QuantPlan& plan, const PackedWeight& weight) {
  return std::max(plan.stages * sm90_quant_stage_bytes(plan, weight), sum_bytes(plan));
}

}  // namespace

int32_t sm90_quant_parts(PackedKind kind, int32_t n, int32_t k) {
  // With many inputs of a byte each, two parts are already bound by memory, and more parts make many rows slower.
  const bool bytes = kind == PackedKind::kF8 || kind == PackedKind::kQ8;
  const int32_t most = bytes && k > 8192 ? 2 : 4;
  constexpr int32_t kLeastInputs = 512;  // of a part
  const int32_t tiles = ceil_div(n, 64);
  int32_t parts = 1;
  // Two CTAs share an SM.
  while (2 * parts <= most && 2 * parts * tiles <= 2 * kSms && k >= 2 * parts * kLeastInputs) {
    parts *= 2;
  }
  return parts;
}

int32_t sm90_quant_stage_bytes(const Sm90QuantPlan& plan, const PackedWeight& weight) {
  const int32_t w = plan.groups * 4 * quant_tile_bytes(weight);
  return round_up(plan.cols * 256 + w, kAlign);
}

int32_t sm90_quant_parts_at(const Sm90QuantPlan& plan, const PackedWeight& weight) {
  if (plan.split == 1) {
    return 0;
  }
  return sums_share_ring(plan) ? sum_bytes(plan) : ring_bytes(plan, weight);
}

size_t sm90_quant_shared_bytes(const Sm90QuantPlan& plan, const PackedWeight& weight) {
  const int32_t ring = ring_bytes(plan, weight);
  const int32_t all = sums_share_ring(plan) ? std::max(ring, sum_bytes(plan) + parts_bytes(plan))
                                            : ring + parts_bytes(plan);
  return static_cast<size_t>(all) + kAlign;
}

Sm90QuantPlan sm90_quant_plan(
    const PackedWeight& weight, int32_t rows, int32_t num_sms, int32_t split, int32_t groups) {
  Sm90QuantPlan plan;
  plan.cols = rows <= 8 ? 8 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
  plan.split = split > 0 ? split : sm90_quant_parts(weight.kind, weight.n, weight.k);
  const int32_t blocks = ceil_div(rows, plan.cols);
  const auto ctas_of = [&](int32_t of_groups) {
    return ceil_div(weight.n, 64 * of_groups) * plan.split * blocks;
  };
  // Wide tiles read x less often, which pays with half of the SMs already.
  const bool wide = plan.cols == 128 && 20 * ctas_of(3) >= 9 * num_sms;
  plan.groups = groups > 0 ? groups : wide ? 3 : 1;
  const int32_t ctas = ctas_of(plan.groups);
  const int32_t most = plan.cols == 128 ? (plan.groups == 1 ? 2 : 1) : 3;
  // If only two CTAs fit on an SM, the GPU cannot place clusters of four on all SMs: so make room for three.
  const int32_t least = plan.split >= 4 && ctas > num_sms ? 3 : 1;
  const int32_t steps = ceil_div(ceil_div(weight.k, kQuantTileCols), plan.split);
  const int32_t extra = sums_share_ring(plan) ? 0 : parts_bytes(plan);
  int32_t fit = 0;
  for (int32_t at_once = std::min(std::max(ceil_div(ctas, num_sms), least), most);
       at_once > 0 && fit < 3;
       --at_once) {
    const int32_t shared = kSm90GemmSharedBytes / at_once - (at_once > 1 ? 2048 : 0);
    fit = (shared - kAlign - extra) / sm90_quant_stage_bytes(plan, weight);
  }
  plan.stages = std::clamp(std::min(fit, steps), 2, kMaxSm90GemmStages);
  return plan;
}

}  // namespace warprow::cuda
