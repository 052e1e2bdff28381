// SPDX-License-Identifier: Apache-2.0
// How sm90_fp8_gemm splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/fp8/fp8_tiles.h"
#include "kernels/linear/fp8/sm90_fp8_gemm.h"

#include <algorithm>

namespace warprow::cuda {
namespace {

constexpr int32_t kAlign = 1024;
constexpr int32_t kSms = 132;  // of an H100 and an H200

int32_t row_bytes(const Sm90Fp8Plan& plan) { return (plan.groups * 64 + 4) * 4; }  // of sums
int32_t sum_bytes(const Sm90Fp8Plan& plan) { return plan.cols * row_bytes(plan); }
int32_t parts_bytes(const Sm90Fp8Plan& plan) {
  return plan.split > 1 ? plan.split * ceil_div(plan.cols, plan.split) * row_bytes(plan) : 0;
}
// With 128 columns other CTAs write their partial sums to the ring's memory, behind the CTA's own sums.
bool sums_share_ring(const Sm90Fp8Plan& plan) { return plan.cols == 128 && !plan.resident; }
int32_t ring_bytes(const Sm90Fp8Plan& plan) {
  const int32_t stages = plan.stages * sm90_fp8_stage_bytes(plan);
  return plan.resident ? stages : std::max(stages, sum_bytes(plan));
}
// The rounded row of a part, and its groups' scales. wgmma reads eight rows of an operand, here each 16 bytes behind the one
// before (wgmma_plain_operand), so there is room behind the row.
int32_t rounded_bytes(const Sm90Fp8Plan& plan, int32_t k) {
  const int32_t steps = ceil_div(fp8_tiles_of(k), plan.split);
  return plan.rounds ? round_up(steps * (kFp8TileCols + 4) + 256, 128) : 0;
}

// How often the CTAs fill the device.
int32_t waves_of(const Sm90Fp8Plan& plan, int32_t rows, int32_t n, int32_t num_sms) {
  const int32_t tiles = ceil_div(n, plan.groups * 64) * ceil_div(rows, plan.cols);
  // Clusters of more than two CTAs cannot use all SMs.
  const int32_t at_once = num_sms / plan.split - (plan.split > 2 ? 3 : 0);
  return ceil_div(tiles, at_once);
}

}  // namespace

// Fitted to products of Qwen3-8B on an H200 (docs/experiments/linears_cuda.md).
double sm90_fp8_us(const Sm90Fp8Plan& plan, int32_t rows, int32_t n, int32_t k, int32_t num_sms) {
  constexpr double kStart = 0.6;
  constexpr double kEnd = 3.1;  // of each wave
  constexpr double kExchange = 2.1;
  constexpr double kEndOfTwo = 1.3;  // more, with two groups
  constexpr double kInputUs = 0.0020;
  constexpr double kInputOfTwoUs = 0.0031;
  const bool two = plan.groups == 2;
  const double wave = (two ? kInputOfTwoUs : kInputUs) * k / plan.split + kEnd +
                      (plan.split > 1 ? kExchange : 0.0) + (two ? kEndOfTwo : 0.0);
  return kStart + waves_of(plan, rows, n, num_sms) * wave;
}

int32_t sm90_fp8_parts(int32_t n, int32_t k) {
  constexpr int32_t kMost = 4;
  constexpr int32_t kLeastInputs = 512;  // of a part
  const int32_t tiles = ceil_div(n, 64);
  int32_t parts = 1;
  while (2 * parts <= kMost && 2 * parts * tiles <= kSms && k >= 2 * parts * kLeastInputs) {
    parts *= 2;
  }
  return parts;
}

int32_t sm90_fp8_stage_bytes(const Sm90Fp8Plan& plan) {
  const int32_t w = plan.groups * 64 * (kFp8TileCols + 4);
  const int32_t x = plan.rounds ? 0 : plan.cols * kFp8TileCols + plan.cols * 4;
  return round_up(w + x, kAlign);
}

int32_t sm90_fp8_parts_at(const Sm90Fp8Plan& plan) {
  if (plan.split == 1) {
    return plan.resident ? ring_bytes(plan) : 0;
  }
  return sums_share_ring(plan) ? sum_bytes(plan) : ring_bytes(plan);
}

int32_t sm90_fp8_row_at(const Sm90Fp8Plan& plan) {
  const int32_t ring = ring_bytes(plan);
  const int32_t behind = plan.resident ? sum_bytes(plan) : parts_bytes(plan);
  const int32_t all =
      sums_share_ring(plan) ? std::max(ring, sum_bytes(plan) + parts_bytes(plan)) : ring + behind;
  return round_up(all, 128);
}

size_t sm90_fp8_shared_bytes(const Sm90Fp8Plan& plan, int32_t k) {
  return static_cast<size_t>(sm90_fp8_row_at(plan)) + static_cast<size_t>(rounded_bytes(plan, k)) +
         static_cast<size_t>(kAlign);
}

Sm90Fp8Plan sm90_fp8_plan(
    const PackedWeight& weight, int32_t rows, int32_t num_sms, int32_t split, int32_t few_bytes) {
  Sm90Fp8Plan plan;
  plan.cols = rows <= 8 ? 8 : rows <= 16 ? 16 : rows <= 32 ? 32 : rows <= 64 ? 64 : 128;
  plan.split = split > 0 ? split : sm90_fp8_parts(weight.n, weight.k);
  plan.rounds = rows == 1;
  const int32_t ctas = ceil_div(weight.n, 64) * plan.split * ceil_div(rows, plan.cols);
  if (plan.cols == 128 && plan.split > 1) {
    Sm90Fp8Plan two = plan;
    two.groups = 2;
    plan.groups =
        waves_of(two, rows, weight.n, num_sms) < waves_of(plan, rows, weight.n, num_sms) ? 2 : 1;
  }
  plan.resident = plan.cols == 128 && plan.split == 1 && ctas > num_sms;
  const int32_t most = plan.cols == 128 ? 1 : 3;  // of 128 columns an SM has registers for one
  const int32_t steps = ceil_div(fp8_tiles_of(weight.k), plan.split);
  const int32_t of_sm = plan.cols <= 16 ? few_bytes : kSm90GemmSharedBytes;
  const int32_t extra = (plan.resident           ? sum_bytes(plan)
                         : sums_share_ring(plan) ? 0
                                                 : parts_bytes(plan)) +
                        rounded_bytes(plan, weight.k) + 256;
  int32_t fit = 0;
  for (int32_t at_once = std::clamp(ceil_div(ctas, num_sms), 1, most); at_once > 0 && fit < 3;
       --at_once) {
    const int32_t shared = of_sm / at_once - (at_once > 1 ? 2048 : 0);
    fit = (shared - kAlign - extra) / sm90_fp8_stage_bytes(plan);
  }
  plan.stages = std::clamp(std::min(fit, steps), 2, kMaxSm90GemmStages);
  return plan;
}

}  // namespace warprow::cuda
