// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cmath>
#include <cstdint>
#include <map>

namespace warprow::test {

// How far counts are from their probabilities: chi-square over its limit at 1e-4 (Wilson and Hilferty's approximation), so
// below 1 if they agree. Cells that are expected less than 5 times are one. A cell that cannot be: 1e9.
template <typename Cell>
double distance(const std::map<Cell, double>& law, const std::map<Cell, int32_t>& seen) {
  double n = 0.0;
  for (const auto& [cell, count] : seen) {
    n += count;
    if (law.count(cell) == 0 || law.at(cell) == 0.0) {
      return 1e9;
    }
  }
  double chi_square = 0.0;
  int32_t freedom = -1;
  double rare_expected = 0.0;
  double rare_seen = 0.0;
  const auto add = [&](double expected, double count) {
    chi_square += (count - expected) * (count - expected) / expected;
    ++freedom;
  };
  for (const auto& [cell, probability] : law) {
    const auto at = seen.find(cell);
    const double count = at == seen.end() ? 0 : at->second;
    if (n * probability >= 5.0) {
      add(n * probability, count);
    } else {
      rare_expected += n * probability;
      rare_seen += count;
    }
  }
  if (rare_expected >= 5.0) {
    add(rare_expected, rare_seen);
  }
  if (freedom < 1) {
    return n > 0.0 ? 0.0 : 1e9;
  }
  const double ninth = 2.0 / (9.0 * freedom);
  return chi_square / (freedom * std::pow(1.0 - ninth + 3.72 * std::sqrt(ninth), 3));
}

}  // namespace warprow::test
