// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear/wide_cuda.h"

#include "base/check.h"
#include "base/math.h"
#include "device/cuda/cuda_check.h"

#include <algorithm>
#include <cuda_runtime.h>

namespace warprow::cuda {
namespace {

constexpr int32_t kTileRows = 64;
constexpr int32_t kStepInputs = 64;
constexpr int32_t kAlign = 1024;
// Two blocks, of one kernel or of two, share a multiprocessor.
constexpr int32_t kBlockSharedBytes = 112 * 1024;
constexpr int32_t kBlocks = 132;

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

}  // namespace

// As measured on an H200 with matrices of Qwen3-0.6B and 8B: few tiles and long rows are where a
// library's kernels wait most. That was the kernel's first form, with device-wide fences where a
// cluster's blocks start and end and other plans beside these; this form is still to be timed.
int32_t wide_rows(int32_t n, int32_t k) {
  if (k < 2048 || n > 4096 || int64_t{n} * k > (16 << 20) || !is_hopper()) {
    return 0;
  }
  if (n > 1024) {
    return 32;
  }
  return k < 3072 ? 64 : 128;
}

void finish_plan(WidePlan& plan, int32_t k, int32_t shared_bytes) {
  const int32_t stage_bytes = (kTileRows + plan.cols) * kStepInputs * 2;
  const int32_t sum_bytes = plan.cols * (kTileRows + 4) * 4;
  const int32_t steps = ceil_div(ceil_div(k, kStepInputs), plan.split);
  plan.stages =
      std::clamp(std::min(steps, (shared_bytes - kAlign) / stage_bytes), 2, kMaxWideStages);
  plan.shared_bytes = static_cast<size_t>(std::max(plan.stages * stage_bytes, sum_bytes) + kAlign);
}

// The best of those that bench/kernels/linear_cuda_bench.cu sweeps: a block a multiprocessor.
WidePlan wide_plan(int32_t m, int32_t n, int32_t k) {
  WidePlan plan;
  plan.cols = m <= 32 ? 32 : m <= 64 ? 64 : 128;
  const int32_t tiles = ceil_div(n, kTileRows);
  while (plan.split < kMaxWideSplit && tiles * plan.split * 2 <= kBlocks) {
    plan.split *= 2;
  }
  finish_plan(plan, k, kBlockSharedBytes);
  return plan;
}

void wide(Stream& stream, const WideArgs& args) {
  wide(stream, args, wide_plan(args.m, args.n, args.k));
}

void wide(Stream& stream, const WideArgs& args, const WidePlan& plan) {
  WR_CHECK(args.m >= 1 && args.m <= plan.cols, "{} rows of {}", args.m, plan.cols);
  WR_CHECK(args.k % 8 == 0 && args.x_stride % 8 == 0, "k {}, x {}", args.k, args.x_stride);
  WR_CHECK(!args.add || args.y_f32, "sums are float32");
  switch (plan.cols) {
    case 32:
      return launch_wide<32>(stream, args, plan);
    case 64:
      return launch_wide<64>(stream, args, plan);
    default:
      return launch_wide<128>(stream, args, plan);
  }
}

}  // namespace warprow::cuda
