// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/wide_cuda.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_check.h"
#include "device/cuda/tensor_map.h"
#include "kernels/linear/wide_maps.h"

#include <algorithm>
#include <cuda_runtime.h>

namespace warprow::cuda {
namespace {

constexpr int32_t kAlign = 1024;
constexpr int32_t kSms = 132;  // an H200's

int32_t stage_bytes(const WidePlan& plan) { return (plan.groups * 64 + plan.cols) * 128; }
int32_t row_bytes(const WidePlan& plan) { return (plan.groups * 64 + 4) * 4; }
int32_t sum_bytes(const WidePlan& plan) { return plan.cols * row_bytes(plan); }
int32_t parts_bytes(const WidePlan& plan) {
  return plan.split > 1 ? plan.split * ceil_div(plan.cols, plan.split) * row_bytes(plan) : 0;
}

bool is_hopper() {
  static const bool hopper = [] {
    int device = 0;
    int major = 0;
    int minor = 0;
    WR_CUDA(cudaGetDevice(&device));
    WR_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    WR_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    return major == 9 && minor == 0;
  }();
  return hopper;
}

// Whether tiles of 192 rows give every multiprocessor one, and few none.
bool fills_one_wave(int64_t n) {
  const int64_t tiles = ceil_div<int64_t>(n, 192);
  return tiles <= kSms && 10 * tiles >= 9 * kSms;
}

}  // namespace

int32_t wide_rows(LinearEpilogue epilogue, int64_t n, int64_t k) {
  constexpr int64_t kManyOutputs = 1 << 16;  // a head's: starting and ending do not count for it
  if (!is_hopper()) {
    return 0;
  }
  const bool gate_of_one_wave = epilogue == LinearEpilogue::kSwiGlu && fills_one_wave(n);
  if (is_small_weight(n, k) || gate_of_one_wave) {
    return kMaxWideRows;
  }
  return n < kManyOutputs ? 64 : 32;
}

bool wide_leaves_norm(LinearEpilogue epilogue, int64_t n) {
  return epilogue == LinearEpilogue::kAdd && n % 64 == 0;
}

int32_t wide_parts_at(const WidePlan& plan) {
  return plan.split == 1 ? 0 : std::max(plan.stages * stage_bytes(plan), sum_bytes(plan));
}

size_t wide_shared_bytes(const WidePlan& plan) {
  const int32_t ring = std::max(plan.stages * stage_bytes(plan), sum_bytes(plan));
  return static_cast<size_t>(ring + parts_bytes(plan) + kAlign);
}

int32_t wide_stages(const WidePlan& plan, int32_t shared_bytes) {
  const int32_t room = shared_bytes - kAlign - parts_bytes(plan);
  return sum_bytes(plan) > room ? 0 : std::min(room / stage_bytes(plan), kMaxWideStages);
}

CUtensorMap wide_map(
    const void* data, int64_t cols, int64_t rows, int64_t stride, int32_t box_rows) {
  return tensor_map<2>(data,
                       {static_cast<uint64_t>(cols), static_cast<uint64_t>(rows)},
                       {static_cast<uint64_t>(stride) * 2},
                       {64, static_cast<uint32_t>(box_rows)},
                       CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

// The best of those that bench/kernels/linear_cuda_bench.cu sweeps, on an H200.
WidePlan wide_plan(int32_t m, int32_t n, int32_t k) {
  WidePlan plan;
  plan.cols = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  const int32_t steps = ceil_div(k, 64);
  plan.groups = fills_one_wave(n) ? 3 : 1;
  const int32_t tiles = ceil_div(n, 64 * plan.groups);
  // Clusters do not fill all of the device.
  const auto slots = [&](int32_t split) { return tiles * split * (split > 2 ? 10 : 9) / 9; };
  const auto worth_halving = [&] {
    if (plan.cols > 64) {  // sums take so much room that a multiprocessor has one block
      return slots(2 * plan.split) <= kSms;
    }
    // A part of k is worth its cost until all multiprocessors have work, a short one until each
    // has two blocks.
    const int32_t blocks = tiles * plan.split;
    return blocks <= kSms && (10 * blocks < 9 * kSms || steps / plan.split < 32);
  };
  while (plan.groups == 1 && plan.split < kMaxWideCluster && worth_halving()) {
    plan.split *= 2;
  }
  const int32_t used = slots(plan.split);
  const int32_t at_once = used <= kSms ? 1 : used <= 2 * kSms ? 2 : 3;
  plan.stages = wide_stages(plan, kWideSharedBytes / at_once - (at_once > 1 ? 2048 : 0));
  if (plan.stages < 3) {
    plan.stages = wide_stages(plan, kWideSharedBytes);
  }
  plan.stages = std::min(plan.stages, std::max(2, ceil_div(steps, plan.split)));
  return plan;
}

void wide(Stream& stream, const WideArgs& args) {
  wide(stream, args, wide_plan(args.m, args.n, args.k));
}

void wide(Stream& stream, const WideArgs& args, const WidePlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= plan.cols, "{} rows of {}", args.m, plan.cols);
  WR_CHECK(args.epilogue != LinearEpilogue::kAdd || args.y_f32, "sums are float32");
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(args.squares == nullptr || args.k % 64 == 0, "k {}", args.k);
  WR_CHECK(args.next_weight == nullptr || wide_leaves_norm(args.epilogue, args.n));
  WR_CHECK(plan.split <= kMaxWideCluster && plan.stages <= kMaxWideStages);
  WR_CHECK_LE(wide_shared_bytes(plan), static_cast<size_t>(kWideSharedBytes));
  WR_CHECK(plan.groups == 3 || plan.groups == 1, "{} groups", plan.groups);
  const bool one = plan.groups == 1;
  switch (plan.cols) {
    case 32:
      return one ? launch_wide<32, 1>(stream, args, plan) : launch_wide<32, 3>(stream, args, plan);
    case 64:
      return one ? launch_wide<64, 1>(stream, args, plan) : launch_wide<64, 3>(stream, args, plan);
    default:
      return one ? launch_wide<128, 1>(stream, args, plan)
                 : launch_wide<128, 3>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
