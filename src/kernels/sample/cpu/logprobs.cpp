// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/cpu/logprobs.h"

#include "kernels/sample/cpu/top_k_top_p.h"

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

void logprobs_of(const TokenRow& row,
                 double lse,
                 const int32_t* named,
                 int32_t n,
                 int32_t* ids,
                 float* logprobs) {
  for (int32_t i = 0; i < n; ++i) {
    ids[i] = named[i];
    logprobs[i] = named[i] >= 0 && named[i] < row.n
                      ? static_cast<float>(static_cast<double>(row.x[named[i]]) - lse)
                      : -std::numeric_limits<float>::infinity();
  }
}

void mask_others(const TokenRow& row, const Cut& cut, int32_t first, float* values) {
  for (int32_t id = 0; id < row.n; ++id) {
    const float x = row.x[id];
    const bool survives = x > cut.lower || (x == cut.lower && id <= cut.last_id) || id == first;
    values[id] = survives ? x : -std::numeric_limits<float>::infinity();
  }
}

TokenRow row_of_survivors(
    const TokenRow& row, const Cut& cut, int32_t first, float* values, float* group_max) {
  mask_others(row, cut, first, values);
  TokenRow left = row;
  left.x = values;
  left.max = row.loops->scan_row(values, row.n, group_max).max;
  left.group_max = group_max;
  return left;
}

}  // namespace warprow::cpu
