// SPDX-License-Identifier: Apache-2.0
// How sm90_bf16_gemm_small_m splits a product. Plain arithmetic, so that a build without CUDA can test it.
#include "base/math.h"
#include "kernels/linear/small_m/sm90_gemm.h"

#include <algorithm>
#include <limits>

namespace warprow::cuda {
namespace {

constexpr int32_t kAlign = 1024;

int32_t stage_bytes(const Sm90GemmPlan& plan) { return (plan.groups * 64 + plan.cols) * 128; }
int32_t row_bytes(const Sm90GemmPlan& plan) { return (plan.groups * 64 + 4) * 4; }
int32_t sum_bytes(const Sm90GemmPlan& plan) { return plan.cols * row_bytes(plan); }
int32_t parts_bytes(const Sm90GemmPlan& plan) {
  return plan.split > 1 ? plan.split * ceil_div(plan.cols, plan.split) * row_bytes(plan) : 0;
}
int32_t term_bytes(const Sm90GemmPlan& plan) {
  const int32_t rows = ceil_div(plan.cols, plan.split);  // that a CTA finishes
  return plan.has_term ? sm90_term_tiles_at(rows, row_bytes(plan)) + kSm90TermTilesBytes : 0;
}

// Clusters of more than two CTAs cannot use all SMs.
int32_t clusters_at_once(const Sm90GemmPlan& plan, int32_t num_sms) {
  return num_sms / plan.split - (plan.split > 2 ? 3 : 0);
}
int32_t num_tiles(const Sm90GemmPlan& plan, int32_t m, int32_t n) {
  return ceil_div(n, 64 * plan.groups) * ceil_div(m, plan.cols);
}

// Whether tiles of 192 rows give at most one tile to every SM, and none to few.
bool fills_one_wave(int64_t n, int32_t num_sms) {
  const int64_t tiles = ceil_div<int64_t>(n, 192);
  return tiles <= num_sms && 10 * tiles >= 9 * num_sms;
}

// Groups of 64 rows of w in a tile, by the estimate. With equal times the most, since large tiles load x less often.
int32_t fastest_groups(Sm90GemmPlan plan, int32_t m, int32_t n, int32_t k, int32_t num_sms) {
  int32_t best = 1;
  double least = std::numeric_limits<double>::max();
  for (const int32_t groups : {1, 2, 3}) {
    plan.groups = groups;
    const double us = sm90_gemm_us(plan, m, n, k, num_sms);
    if (us <= least && (groups != 2 || plan.cols == 128)) {
      least = us;
      best = groups;
    }
  }
  return best;
}

}  // namespace

double sm90_gemm_us(const Sm90GemmPlan& plan, int32_t m, int32_t n, int32_t k, int32_t num_sms) {
  constexpr double kStart = 2.5;
  constexpr double kSmBytesPerUs = 74e3;
  constexpr double kBytesPerUs = 4.6e6;
  // Start and end of a CTA. Small ones share an SM, so that one starts while another ends.
  const double start = plan.groups == 1 ? (plan.cols < 128 ? 0.5 : 1.5) : 2.0 * plan.groups;
  const double bytes = 2.0 * (64 * plan.groups + plan.cols) * k / plan.split;
  const double all = ceil_div(num_tiles(plan, m, n), clusters_at_once(plan, num_sms)) *
                     (start + bytes / kSmBytesPerUs);
  return kStart + std::max(all, 2.0 * n * k / kBytesPerUs);
}

bool sm90_gemm_is_resident(const Sm90GemmPlan& plan, int32_t m, int32_t n, int32_t num_sms) {
  return num_tiles(plan, m, n) <= clusters_at_once(plan, num_sms);
}

int32_t sm90_gemm_rows(LinearEpilogue epilogue, int64_t n, int64_t k, const DeviceFacts& device) {
  constexpr int64_t kManyOutputs = 1 << 16;  // an LM head: start and end are negligible
  if (device.compute_capability != 90) {
    return 0;
  }
  const bool gate_of_one_wave =
      epilogue == LinearEpilogue::kSwiGlu && fills_one_wave(n, device.num_sms);
  if (is_small_weight(n, k) || gate_of_one_wave) {
    return kMaxSm90GemmRows;
  }
  return n < kManyOutputs ? 64 : 32;
}

bool sm90_gemm_leaves_norm(LinearEpilogue epilogue, int64_t n) {
  return epilogue == LinearEpilogue::kAdd && n % 64 == 0;
}

int32_t sm90_gemm_parts_at(const Sm90GemmPlan& plan) {
  return plan.split == 1 ? 0 : std::max(plan.stages * stage_bytes(plan), sum_bytes(plan));
}

int32_t sm90_gemm_term_at(const Sm90GemmPlan& plan) {
  return std::max(plan.stages * stage_bytes(plan), sum_bytes(plan)) + parts_bytes(plan);
}

size_t sm90_gemm_shared_bytes(const Sm90GemmPlan& plan) {
  const int32_t bytes = sm90_gemm_term_at(plan) + term_bytes(plan) + kAlign;
  return static_cast<size_t>(bytes);
}

int32_t sm90_gemm_stages(const Sm90GemmPlan& plan, int32_t shared_bytes) {
  const int32_t room = shared_bytes - kAlign - parts_bytes(plan) - term_bytes(plan);
  return sum_bytes(plan) > room ? 0 : std::min(room / stage_bytes(plan), kMaxSm90GemmStages);
}

// The best plans in the sweep of bench/kernels/linear_cuda_bench.cu, on an H200.
Sm90GemmPlan sm90_gemm_plan(
    int32_t m, int32_t n, int32_t k, int32_t num_sms, int32_t split, bool has_term) {
  Sm90GemmPlan plan;
  plan.has_term = has_term;
  plan.cols = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  const int32_t steps = ceil_div(k, 64);
  plan.split = std::max(split, 1);
  if (split > 0) {
    plan.groups = fastest_groups(plan, m, n, k, num_sms);
  } else if (fills_one_wave(n, num_sms)) {
    plan.groups = 3;
  }
  const int32_t tiles = ceil_div(n, 64 * plan.groups);
  // Clusters cannot use all SMs of the device.
  const auto slots = [&](int32_t ctas) { return tiles * ctas * (ctas > 2 ? 10 : 9) / 9; };
  const auto worth_halving = [&] {
    if (plan.cols > 64) {  // the sums take so much shared memory that an SM holds one CTA
      return slots(2 * plan.split) <= num_sms;
    }
    // Splitting k further pays until all SMs have work; if the parts are short, until each SM has two CTAs.
    const int32_t blocks = tiles * plan.split;
    return blocks <= num_sms && (10 * blocks < 9 * num_sms || steps / plan.split < 32);
  };
  while (split == 0 && plan.groups == 1 && plan.split < kMaxSm90GemmCluster && worth_halving()) {
    plan.split *= 2;
  }
  const int32_t used = slots(plan.split) * ceil_div(m, plan.cols);
  // A kernel with a term has registers for two CTAs on an SM.
  int32_t at_once = used <= num_sms ? 1 : used <= 2 * num_sms || has_term ? 2 : 3;
  if (split > 0 && plan.groups == 3) {
    at_once = 1;  // a deep ring is worth more than a second CTA on the SM
  }
  const auto stages_of = [&](int32_t ctas) {  // with so many CTAs on an SM
    return sm90_gemm_stages(plan, kSm90GemmSharedBytes / ctas - (ctas > 1 ? 2048 : 0));
  };
  plan.stages = stages_of(at_once);
  if (plan.stages < 3 && split > 0 && at_once > 2) {
    plan.stages = stages_of(2);
  }
  if (plan.stages < 3) {
    plan.stages = sm90_gemm_stages(plan, kSm90GemmSharedBytes);
  }
  plan.stages = std::min(plan.stages, std::max(2, ceil_div(steps, plan.split)));
  return plan;
}

}  // namespace warprow::cuda
