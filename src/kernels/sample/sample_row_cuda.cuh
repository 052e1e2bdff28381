// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/philox.h"
#include "kernels/sample/min_p.h"
#include "kernels/sample/penalties.h"
#include "kernels/sample/sample.h"
#include "kernels/sample/sample_layout_cuda.h"
#include "kernels/sample/temperature.h"

#include <cstdint>
#include <limits>

namespace warprow::cuda {

constexpr float kLog2e = 1.442695041F;
constexpr int32_t kMaxKeys = 2048;               // tokens that a block holds and sorts
constexpr int32_t kListTopK = kMaxKeys * 3 / 4;  // leaves room for what a first look finds besides
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row's parameters as its kernels need them; all of them read the same from the same row.
struct RowPlan {
  int32_t row;       // that logit_row names; negative: no token is wanted
  int32_t position;  // of the logits' input token
  float divisor;     // of random rows
  int32_t top_k;     // 0: off
  float top_p;       // 1: off
  float min_p;       // 0: off
  bool random;
  bool logprobs;
  bool penalties;
  bool too_short;  // stop ids are masked
  bool lists;      // allowed ids, bad words or biases
  bool processed;  // its logprobs are of what the rules leave

  // Whether logits differ from the raw ones.
  __device__ bool changed() const { return penalties || too_short || lists; }
  // Whether changed logits are wanted behind the scan.
  __device__ bool kept() const { return cut() || processed; }
  // A random row that draws from a part of its tokens.
  __device__ bool cut() const { return random && (top_k > 0 || top_p < 1.0F || min_p > 0.0F); }
  // Its top_k tokens fit into a block's list: no draw from all tokens is wanted.
  __device__ bool listed() const { return random && top_k > 0 && top_k <= kListTopK; }
  // The scan draws from all its tokens.
  __device__ bool drawn() const { return random && !listed(); }
  // Whether a token survives depends on what stands before it.
  __device__ bool tested() const { return cut() && !listed() && (top_k > 0 || top_p < 1.0F); }
  // The nucleus of all tokens: their mass is wanted.
  __device__ bool top_p_alone() const {
    return random && top_p < 1.0F && top_k == 0 && min_p == 0.0F;
  }
};

// The row whose parameters logits row i has; negative: no token is wanted.
__device__ inline int32_t params_row(const SampleArgs& args, int64_t i) {
  return args.given.empty() ? args.logit_row(i) : 0;
}

__device__ inline RowPlan plan_row(const SampleArgs& args, uint32_t rules, int64_t i) {
  RowPlan plan{};
  if (!args.given.empty()) {
    plan.divisor = 1.0F;
    plan.top_p = 1.0F;
    plan.logprobs = true;
    return plan;
  }
  plan.row = params_row(args, i);
  if (plan.row < 0) {
    return plan;
  }
  const SampleParams& p = args.params(plan.row);
  plan.position = args.logit_pos(i);
  plan.random = (rules & kSampleRandom) != 0 && !is_greedy(p.temperature);
  plan.divisor = effective_temperature(p.temperature);
  const bool may_cut = (rules & kSampleCut) != 0;
  plan.top_k = may_cut && p.top_k > 0 && p.top_k < args.logits.shape[1] ? p.top_k : 0;
  plan.top_p = may_cut ? p.top_p : 1.0F;
  plan.min_p = may_cut ? p.min_p : 0.0F;
  const bool logprobs = (rules & kSampleLogprobs) != 0 && p.num_logprobs >= 0;
  plan.processed = logprobs && is_processed(args.logprobs_mode);
  plan.logprobs = logprobs && !plan.processed;
  if (args.tokens.empty()) {
    return plan;
  }
  if ((rules & kSamplePenalties) != 0) {
    plan.penalties = uses_penalties(p);
    plan.too_short =
        p.min_tokens > 0 &&
        known_tokens(args.tokens, plan.row, plan.position).num_outputs() < p.min_tokens;
  }
  plan.lists = (rules & kSampleTokenLists) != 0 && has_token_lists(p);
  return plan;
}

__device__ inline RandomKey draw_key(const SampleArgs& args, const RowPlan& plan) {
  return {args.params(plan.row).seed, static_cast<uint32_t>(plan.position), RandomPurpose::kSample};
}

// A row of logits that may be read by four where its address allows.
struct LogitRow {
  const float* x;
  int32_t vocab;
  bool aligned;

  __device__ LogitRow(const float* data, int64_t n)
      : x(data),
        vocab(static_cast<int32_t>(n)),
        aligned(reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0) {}

  // Tokens id .. id + 3, -inf behind the end.
  __device__ float4 four(int32_t id) const {
    if (aligned && id + 4 <= vocab) {
      return *reinterpret_cast<const float4*>(x + id);
    }
    const auto one = [&](int32_t at) { return at < vocab ? x[at] : -kInfinity; };
    return {one(id), one(id + 1), one(id + 2), one(id + 3)};
  }
};

// The larger; NaN if one is.
__device__ __forceinline__ float max_or_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// 2^x to float precision.
__device__ __forceinline__ float exp2_of(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

// Order-preserving integers of a float and a double that are no NaN.
__device__ __forceinline__ uint32_t ordered(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0F);  // -0 equals +0
  return (bits & 0x80000000U) != 0 ? ~bits : bits | 0x80000000U;
}
__device__ __forceinline__ float from_ordered(uint32_t v) {
  return __uint_as_float((v & 0x80000000U) != 0 ? v & 0x7fffffffU : ~v);
}
__device__ __forceinline__ unsigned long long ordered(double x) {
  const auto bits = static_cast<unsigned long long>(__double_as_longlong(x + 0.0));
  return (bits >> 63) != 0 ? ~bits : bits | (1ULL << 63);
}
__device__ __forceinline__ double from_ordered(unsigned long long v) {
  return __longlong_as_double(static_cast<long long>((v >> 63) != 0 ? v & ~(1ULL << 63) : ~v));
}

}  // namespace warprow::cuda
