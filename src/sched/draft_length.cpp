// SPDX-License-Identifier: Apache-2.0
#include "sched/draft_length.h"

#include <algorithm>

namespace warprow {
namespace {

constexpr int32_t kPassTokens = 8;
constexpr double kWeight = 0.15;      // of a new draft in the average
constexpr double kHysteresis = 1.25;  // how clearly another length must be better

// The largest j <= most with a^j > least.
int32_t worth(double a, double least, int32_t most) {
  int32_t j = 0;
  double reached = a;
  while (j < most && reached > least) {
    ++j;
    reached *= a;
  }
  return j;
}

}  // namespace

double draft_cost_beside(double token_cost, int32_t num_rows) {
  const double rows = std::max(num_rows, 1);
  return token_cost * rows / (1 + token_cost * (rows - 1));
}

int32_t most_drafts_beside(int32_t num_rows, int32_t most) {
  const int32_t rows = std::max(num_rows, 1);
  return rows > kPassTokens ? most : std::min(most, kPassTokens / rows - 1);
}

void DraftRecord::count(bool accepted) {
  acceptance_ += kWeight * ((accepted ? 1.0 : 0.0) - acceptance_);
}

void DraftRecord::take(std::span<const TokenId> tokens,
                       int32_t num_drafted,
                       std::span<const TokenId> proposed) {
  if (tokens.empty()) {
    return;
  }
  if (num_drafted > 0) {
    const auto num_accepted = static_cast<int32_t>(tokens.size()) - 1;
    for (int32_t i = 0; i < num_accepted; ++i) {
      count(true);
    }
    if (num_accepted < num_drafted) {
      count(false);
    }
  } else if (guess_ != kUnknown) {
    count(guess_ == tokens.front());
  }
  guess_ = proposed.empty() ? kUnknown : proposed.front();
}

int32_t DraftRecord::decide(double cost, int32_t most) {
  const int32_t surely = worth(acceptance_, cost * kHysteresis, most);
  const int32_t perhaps = worth(acceptance_, cost / kHysteresis, most);
  length_ = std::clamp(length_, surely, perhaps);
  return length_;
}

}  // namespace warprow
