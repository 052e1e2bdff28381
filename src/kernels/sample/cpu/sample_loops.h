// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "kernels/simd/dispatch.h"

#include <cstdint>

namespace warprow::cpu {

// Tokens that share one maximum. A search for large values reads only groups whose maximum is large enough.
constexpr int32_t kMaxGroup = 64;
constexpr int32_t num_max_groups(int32_t n) { return (n + kMaxGroup - 1) / kMaxGroup; }

// A sort key of a token: ascending keys are descending values, then ascending ids. Not for NaN.
using TokenKey = uint64_t;

struct RowFacts {
  float max;
  int32_t argmax;  // the lowest id of a maximum; -1 if the row has NaN
  bool has_nan;
};

// Which tokens survive: value above `lower`, or equal to it and id <= last_id.
struct Cut {
  float lower;
  int32_t last_id;
};

struct GumbelDraw {
  const float* x;
  int32_t n;
  int32_t first;  // the survivor to begin with, ideally the most likely
  Cut cut;
  uint64_t seed;
  uint32_t position;
  uint32_t purpose;
};

// Finds the maximum of a row, and of each group of kMaxGroup.
WR_ISA_DECLARE(RowFacts, scan_row, (const float* x, int32_t n, float* group_max));
// out[i] = x[i] / divisor.
WR_ISA_DECLARE(void, divide_row, (const float* x, int32_t n, float divisor, float* out));
// out[i] = e^(x[i] - max); returns the sum.
WR_ISA_DECLARE(double, exp_row, (const float* x, int32_t n, float max, float* out));
// The sum of e^(x[i] - max) over x[i] >= lower.
WR_ISA_DECLARE(double, sum_exp, (const float* x, int32_t n, float max, float lower));
// The number of x[i] >= value.
WR_ISA_DECLARE(int32_t, count_at_least, (const float* x, int32_t n, float value));
// Collects the keys of all x[i] >= lower, in the order of ids. Returns their number. group_max is from
// scan_row.
WR_ISA_DECLARE(int32_t,
               collect_at_least,
               (const float* x, int32_t n, float lower, const float* group_max, TokenKey* keys));
// The surviving token with the largest gumbel_score.
WR_ISA_DECLARE(int32_t, draw_gumbel, (const GumbelDraw& d));

// gumbel_score for draw_gumbel. It is compiled once for all instruction sets, so that a token's score is the
// same with each.
double draw_score(const GumbelDraw& d, int32_t token);

// The loops of one instruction set.
struct SampleLoops {
  decltype(&scan_row_generic) scan_row;
  decltype(&divide_row_generic) divide_row;
  decltype(&exp_row_generic) exp_row;
  decltype(&sum_exp_generic) sum_exp;
  decltype(&count_at_least_generic) count_at_least;
  decltype(&collect_at_least_generic) collect_at_least;
  decltype(&draw_gumbel_generic) draw_gumbel;
};

}  // namespace warprow::cpu
