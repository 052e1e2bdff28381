// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/penalties.h"

namespace warprow::cpu {

void apply_penalties(const KnownTokens& tokens,
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

}  // namespace warprow::cpu
