// SPDX-License-Identifier: Apache-2.0
#include "kernels/sample/cpu/top_k_top_p.h"

#include "base/math.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace warprow::cpu {
namespace {

constexpr int32_t kBins = 512;  // of the histogram of log-probabilities

// Sorts the keys and returns the first one with which `mass` reaches `target`, or the last.
TokenKey last_until(TokenKey* begin, TokenKey* end, float max, double mass, double target) {
  std::sort(begin, end);
  TokenKey* key = begin;
  for (; key + 1 < end; ++key) {
    mass += std::exp(static_cast<double>(key_value(*key)) - static_cast<double>(max));
    if (mass >= target) {
      break;
    }
  }
  return *key;
}

// The first key, in sorted order, with which the mass reaches `target`. For a long list, a histogram over max
// - x finds the bin in which the mass is reached. Bins before it survive and bins after it do not, so only
// that bin has to be sorted.
TokenKey last_of_mass(const TokenRow& row, int32_t count, double target) {
  TokenKey* keys = row.keys;
  if (count <= kShortList) {
    return last_until(keys, keys + count, row.max, 0.0, target);
  }
  float least = row.max;
  for (int32_t i = 0; i < count; ++i) {
    row.values[i] = key_value(keys[i]);
    least = std::min(least, row.values[i]);
  }
  const float to_bin = static_cast<float>(kBins - 1) / std::max(row.max - least, 1e-30F);
  const auto bin_of = [&](float x) {
    return std::min(static_cast<int32_t>((row.max - x) * to_bin), kBins - 1);
  };
  double mass[kBins] = {};
  int32_t last_bin = 0;  // the last non-empty bin
  for (int32_t begin = 0; begin < count; begin += kMaxGroup) {
    float weights[kMaxGroup];
    const int32_t n = std::min(kMaxGroup, count - begin);
    row.loops->exp_row(row.values + begin, n, row.max, weights);
    for (int32_t i = 0; i < n; ++i) {
      const int32_t bin = bin_of(row.values[begin + i]);
      mass[bin] += static_cast<double>(weights[i]);
      last_bin = std::max(last_bin, bin);
    }
  }
  double before = 0.0;
  int32_t bin = 0;
  while (bin < last_bin && before + mass[bin] < target) {
    before += mass[bin++];
  }
  TokenKey* end = keys;
  for (int32_t i = 0; i < count; ++i) {
    if (bin_of(row.values[i]) == bin) {
      *end++ = keys[i];
    }
  }
  return last_until(keys, end, row.max, before, target);
}

}  // namespace

int32_t select_top_k(const TokenRow& row, int32_t k, float lower) {
  k = std::min(k, row.n);
  const int32_t groups = num_max_groups(row.n);
  if (k < groups) {
    // At least k values reach the k-th largest group maximum, so no smaller value is among the first k.
    std::copy_n(row.group_max, groups, row.group_copy);
    std::nth_element(
        row.group_copy, row.group_copy + (k - 1), row.group_copy + groups, std::greater<>());
    lower = std::max(lower, row.group_copy[k - 1]);
  }
  const int32_t count = row.loops->collect_at_least(row.x, row.n, lower, row.group_max, row.keys);
  if (count <= k) {
    return count;
  }
  std::nth_element(row.keys, row.keys + (k - 1), row.keys + count);
  return k;
}

TokenKey last_of_top_p(const TokenRow& row, int32_t count, float p) {
  double total = 0.0;
  for (int32_t begin = 0; begin < count; begin += kMaxGroup) {
    float values[kMaxGroup];
    const int32_t n = std::min(kMaxGroup, count - begin);
    for (int32_t i = 0; i < n; ++i) {
      values[i] = key_value(row.keys[begin + i]);
    }
    total += row.loops->exp_row(values, n, row.max, values);
  }
  return last_of_mass(row, count, static_cast<double>(p) * total);
}

TopPSurvivors top_p_of_row(const TokenRow& row, float lower, float p) {
  const double total = row.loops->sum_exp(row.x, row.n, row.max, lower);
  // Tokens under the bound have a mass of at most (1 - p) * total together, so those at or above it reach p.
  // Half of it leaves room for rounding.
  const double spare = 0.5 * (1.0 - static_cast<double>(p)) * total / static_cast<double>(row.n);
  const float bound = static_cast<float>(static_cast<double>(row.max) + std::log(spare));
  const int32_t count =
      row.loops->collect_at_least(row.x, row.n, std::max(lower, bound), row.group_max, row.keys);
  return {count, last_of_mass(row, count, static_cast<double>(p) * total)};
}

}  // namespace warprow::cpu
