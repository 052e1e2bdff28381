// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/logprobs.h"

#include "kernels/sample/token_key.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace warprow::cpu {

double log_sum_exp(const TokenRow& row) {
  const float lowest = std::numeric_limits<float>::lowest();
  return static_cast<double>(row.max) + std::log(row.loops->sum_exp(row.x, row.n, row.max, lowest));
}

int32_t token_rank(const TokenRow& row, int32_t token) {
  return row.loops->count_at_least(row.x, row.n, row.x[token]);
}

void top_logprobs(const TokenRow& row, double lse, int32_t k, int32_t* ids, float* logprobs) {
  const int32_t count = k > 0 ? select_top_k(row, k, -std::numeric_limits<float>::infinity()) : 0;
  std::sort(row.keys, row.keys + count);
  for (int32_t i = 0; i < k; ++i) {
    ids[i] = i < count ? key_id(row.keys[i]) : -1;
    logprobs[i] = i < count ? static_cast<float>(static_cast<double>(key_value(row.keys[i])) - lse)
                            : -std::numeric_limits<float>::infinity();
  }
}

}  // namespace warprow::cpu
