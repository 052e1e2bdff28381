// SPDX-License-Identifier: Apache-2.0
#include "sched/draft_length.h"

#include <algorithm>
#include <cmath>

namespace warprow {
namespace {

constexpr int32_t kPassTokens = 8;
constexpr double kWeight = 0.15;          // of a new draft in the average
constexpr double kHysteresis = 1.25;      // how clearly another length must be better
constexpr double kStepHysteresis = 1.02;  // the same for all rows of a step
// Of a step that verifies drafts, whatever their number: docs/performance.md, one row, K = 1.
constexpr double kDraftStepCost = 0.03;
constexpr double kGoodAcceptance = 0.8;  // of a drafting model

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

// The time of a step that verifies `length` drafts of each row and makes as many.
double step_time(int32_t num_rows, int32_t length, const DraftTimes& times) {
  const double base = length > 0 ? 1 + kDraftStepCost : 1;
  return base * gpu_step_time(times.knee, static_cast<double>(num_rows) * (1 + length)) +
         times.forward * length;
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

double gpu_step_time(double knee, double num_toks) {
  const double share = num_toks / knee;
  return std::cbrt(1 + share * share * share);
}

int32_t common_drafts(std::span<const double> acceptance,
                      int32_t num_rows,
                      const DraftTimes& times,
                      int32_t most,
                      int32_t before) {
  const auto value = [&](int32_t length) {
    double tokens = num_rows;
    for (const double a : acceptance) {
      double reached = a;
      for (int32_t j = 0; j < length; ++j, reached *= a) {
        tokens += reached;
      }
    }
    return tokens / step_time(num_rows, length, times);
  };
  int32_t best = std::min(before, most);
  double best_value = value(best) * kStepHysteresis;
  for (const int32_t length : {0, 1, (most + 1) / 2, most}) {
    if (length <= most && value(length) > best_value) {
      best = length;
      best_value = value(length);
    }
  }
  return best;
}

bool drafts_may_pay(int32_t num_rows, const DraftTimes& times) {
  return (1 + kGoodAcceptance) * gpu_step_time(times.knee, num_rows) >
         step_time(num_rows, 1, times);
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
