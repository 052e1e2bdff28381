// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/philox.h"
#include "kernels/sample/cuda/stages.h"
#include "kernels/sample/rules/min_p.h"
#include "kernels/sample/rules/penalties.h"
#include "kernels/sample/rules/temperature.h"
#include "kernels/sample/sample.h"

#include <cstdint>
#include <limits>

namespace warprow::cuda {

constexpr float kLog2e = 1.442695041F;
constexpr int32_t kMaxKeys = 2048;               // tokens that a CTA can hold and sort
constexpr int32_t kListTopK = kMaxKeys * 3 / 4;  // leaves room for extra tokens of the first search
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A row's parameters for the kernels. Every kernel derives the same plan for a row.
struct RowPlan {
  int32_t row;       // of logit_row; negative: the row yields no token
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
  bool processed;  // logprobs are of the logits after all rules
  int32_t draft;   // the draft token that the draw verifies; negative: none

  // Whether logits differ from the raw ones.
  __device__ bool changed() const { return penalties || too_short || lists; }
  // Whether the changed logits are needed after the scan.
  __device__ bool kept() const { return cut() || processed || draft >= 0; }
  // A random row that draws from a subset of its tokens.
  __device__ bool cut() const { return random && (top_k > 0 || top_p < 1.0F || min_p > 0.0F); }
  // The top_k tokens fit into a CTA's list, so no draw from all tokens is needed.
  __device__ bool listed() const { return random && top_k > 0 && top_k <= kListTopK; }
  // The scan draws from all tokens of the row.
  __device__ bool drawn() const { return random && !listed(); }
  // Whether a token survives depends on the tokens before it.
  __device__ bool tested() const { return cut() && !listed() && (top_k > 0 || top_p < 1.0F); }
  // The nucleus over all tokens: needs their total mass.
  __device__ bool top_p_alone() const {
    return random && top_p < 1.0F && top_k == 0 && min_p == 0.0F;
  }
};

// The row of params for logits row i; negative: the row yields no token.
__device__ inline int32_t params_row(const SampleArgs& args, int64_t i) {
  return args.given.empty() ? args.logit_row(i) : 0;
}

__device__ inline RowPlan plan_row(const SampleArgs& args, uint32_t rules, int64_t i) {
  RowPlan plan{};
  plan.draft = -1;
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
  if (plan.random && !args.draft_at.empty()) {
    const int32_t place = args.draft_at(i);
    const int32_t draft = place < 0 ? -1 : args.drafts.tokens[place];
    plan.draft = draft < args.logits.shape[1] ? draft : -1;
  }
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
  return {args.params(plan.row).seed, static_cast<uint32_t>(plan.position), args.purpose};
}

// A row of logits, which is read by fours if its address allows.
struct LogitRow {
  const float* x;
  int32_t vocab;
  bool aligned;

  __device__ LogitRow(const float* data, int64_t n)
      : x(data),
        vocab(static_cast<int32_t>(n)),
        aligned(reinterpret_cast<uintptr_t>(data) % sizeof(float4) == 0) {}

  // Tokens id .. id + 3; -inf past the end.
  __device__ float4 four(int32_t id) const {
    if (aligned && id + 4 <= vocab) {
      return *reinterpret_cast<const float4*>(x + id);
    }
    const auto one = [&](int32_t at) { return at < vocab ? x[at] : -kInfinity; };
    return {one(id), one(id + 1), one(id + 2), one(id + 3)};
  }
};

// Order-preserving mappings from float and double, except NaN, to integers.
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
