// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/hd.h"
#include "kernels/sample/sample_params.h"
#include "kernels/sample/token_history.h"

#include <cstdint>

namespace warprow {

WR_HD constexpr bool uses_penalties(const SampleParams& p) {
  return p.repetition_penalty != 1.0F || p.frequency_penalty != 0.0F || p.presence_penalty != 0.0F;
}

// The penalised logit of a token that occurs in the prompt or the output, `count` times in the output. The
// repetition penalty makes the token less likely whatever the logit's sign (Keskar et al., "CTRL", 2019) and
// also counts the prompt. Frequency and presence penalties count the output alone. -inf stays -inf.
WR_HD inline float penalized(float logit, const SampleParams& p, int32_t count) {
#ifdef __CUDA_ARCH__  // never a fused multiply-add
  logit = logit > 0.0F ? logit / p.repetition_penalty : __fmul_rn(logit, p.repetition_penalty);
  logit -= __fmul_rn(p.frequency_penalty, static_cast<float>(count));
#else
  logit = logit > 0.0F ? logit / p.repetition_penalty : logit * p.repetition_penalty;
  logit -= p.frequency_penalty * static_cast<float>(count);
#endif
  return count > 0 ? logit - p.presence_penalty : logit;
}

namespace cpu {

// Penalises the row's tokens in logits [vocab]. counts [vocab] is uninitialised scratch: no state is kept
// between steps. So the cost of a row is proportional to its tokens, and neither batching nor preemption
// changes the result.
inline void apply_penalties(const KnownTokens& tokens,
                            const SampleParams& params,
                            float* logits,
                            int32_t vocab,
                            int32_t* counts) {
  constexpr int32_t kDone = -1;
  const auto walk = [&](int32_t begin, const auto& f) {
    tokens.for_each_from(begin, [&](int32_t id) {
      if (id >= 0 && id < vocab) {
        f(id);
      }
    });
  };
  const int32_t first = params.repetition_penalty != 1.0F ? 0 : tokens.prompt_len;
  walk(first, [&](int32_t id) { counts[id] = 0; });
  walk(tokens.prompt_len, [&](int32_t id) { ++counts[id]; });
  walk(first, [&](int32_t id) {
    if (counts[id] != kDone) {
      logits[id] = penalized(logits[id], params, counts[id]);
      counts[id] = kDone;
    }
  });
}

}  // namespace cpu
}  // namespace warprow
